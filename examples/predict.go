// What a student answers to a text, or to two of a student of pairs, in Go:
//
//	python student/engine/build.py libdistill_student.so
//	export CGO_CFLAGS="-I $PWD/student/engine" CGO_LDFLAGS="-L $PWD -ldistill_student -Wl,-rpath,$PWD"
//	go build examples/predict.go
//	./predict sst2.distill "A film of great charm."
package main

/*
#include <stdlib.h>
#include "distill_student.h"

// Texts point to their bytes, and Go hands no pointers to pointers of its own to C.
static distill_status predict_one(distill_student* student, int64_t task, const char* first, int64_t first_bytes,
                                  const char* second, int64_t second_bytes, float* answers, uint8_t* chosen) {
  const int64_t starts[2][2] = {{0, first_bytes}, {0, second_bytes}};
  const distill_texts texts[2] = {{first, starts[0], 1}, {second, starts[1], 1}};
  const distill_tasks tasks = {&task, 1};
  return distill_predict(student, &tasks, &texts[0], second ? &texts[1] : NULL, 1, 0, answers, chosen);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

// Of a file with several tasks the first one answers.
const task = 0

// Student is an open file. Several goroutines may use it at once.
type Student struct {
	handle *C.distill_student
	labels []string
}

// Answer is the probability of a label and whether it is predicted, or the score.
type Answer struct {
	Label  string
	Value  float32
	Chosen bool
}

// call keeps the goroutine on its thread, to which the message of an error belongs.
func call(work func() C.distill_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if work() == C.DISTILL_OK {
		return nil
	}
	return errors.New(C.GoString(C.distill_last_error()))
}

// Open reads a student. Close frees it.
func Open(path string) (*Student, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	student := &Student{}
	if err := call(func() C.distill_status { return C.distill_open(name, &student.handle) }); err != nil {
		return nil, err
	}
	var info C.distill_info
	if err := call(func() C.distill_status { return C.distill_describe(student.handle, task, &info) }); err != nil {
		student.Close()
		return nil, err
	}
	for number := C.int64_t(0); number < info.num_answers; number++ {
		student.labels = append(student.labels, C.GoString(C.distill_label(student.handle, task, number)))
	}
	return student, nil
}

// Close frees the student.
func (student *Student) Close() { C.distill_close(student.handle) }

// Predict answers one text, or two of a student of pairs.
func (student *Student) Predict(texts ...string) ([]Answer, error) {
	var bytes [2]*C.char
	var sizes [2]C.int64_t
	for n, text := range texts {
		bytes[n], sizes[n] = C.CString(text), C.int64_t(len(text))
		defer C.free(unsafe.Pointer(bytes[n]))
	}
	values, chosen := make([]C.float, len(student.labels)), make([]C.uint8_t, len(student.labels))
	err := call(func() C.distill_status {
		return C.predict_one(student.handle, task, bytes[0], sizes[0], bytes[1], sizes[1], &values[0], &chosen[0])
	})
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, len(values))
	for n, label := range student.labels {
		answers[n] = Answer{label, float32(values[n]), chosen[n] != 0}
	}
	return answers, nil
}

func main() {
	if len(os.Args) != 3 && len(os.Args) != 4 {
		fail(fmt.Errorf("usage: %s FILE TEXT [SECOND TEXT]", os.Args[0]))
	}
	student, err := Open(os.Args[1])
	if err != nil {
		fail(err)
	}
	defer student.Close()
	answers, err := student.Predict(os.Args[2:]...)
	if err != nil {
		fail(err)
	}
	for _, answer := range answers {
		mark := ""
		if answer.Chosen {
			mark = " <"
		}
		fmt.Printf("%s %.4f%s\n", answer.Label, answer.Value, mark)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(2)
}
