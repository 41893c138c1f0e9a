//! What a student answers to a text, or to two of a student of pairs, in Rust:
//!
//!   python student/engine/build.py libdistill_student.so
//!   rustc -O examples/predict.rs -L . -l distill_student -C link-arg=-Wl,-rpath,'$ORIGIN'
//!   ./predict sst2.distill "A film of great charm."

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr;

#[repr(C)]
struct Texts {
    bytes: *const c_char,
    starts: *const i64,
    count: i64,
}

#[repr(C)]
struct Tasks {
    numbers: *const i64,
    count: i64,
}

#[repr(C)]
struct Info {
    task: *const c_char,
    kind: c_int,
    is_pair: i32,
    num_logits: i64,
    num_answers: i64,
    num_features: i64,
    num_tokens: i64,
    max_tokens: i64,
    has_certificate: i32,
}

extern "C" {
    fn distill_open(path: *const c_char, student: *mut *mut c_void) -> c_int;
    fn distill_close(student: *mut c_void);
    fn distill_describe(student: *const c_void, task: i64, info: *mut Info) -> c_int;
    fn distill_label(student: *const c_void, task: i64, number: i64) -> *const c_char;
    fn distill_last_error() -> *const c_char;
    fn distill_predict(
        student: *const c_void,
        tasks: *const Tasks,
        first: *const Texts,
        second: *const Texts,
        threads: i32,
        abstains: i32,
        answers: *mut f32,
        chosen: *mut u8,
    ) -> c_int;
}

/// Of a file with several tasks the first one answers.
const TASK: i64 = 0;

/// An open student. The engine allows calls from several threads at once.
struct Student {
    handle: *mut c_void,
    labels: Vec<String>,
}

unsafe impl Send for Student {}
unsafe impl Sync for Student {}

fn check(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(distill_last_error()) }.to_string_lossy().into_owned())
}

impl Student {
    fn open(path: &str) -> Result<Student, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let mut student = Student { handle: ptr::null_mut(), labels: Vec::new() };
        let mut info: Info = unsafe { std::mem::zeroed() };
        unsafe {
            check(distill_open(path.as_ptr(), &mut student.handle))?;
            check(distill_describe(student.handle, TASK, &mut info))?;
            for number in 0..info.num_answers {
                let label = CStr::from_ptr(distill_label(student.handle, TASK, number));
                student.labels.push(label.to_string_lossy().into_owned());
            }
        }
        Ok(student)
    }

    /// The probability of each label and whether it is predicted, or the score.
    fn predict(&self, text: &str, second: Option<&str>) -> Result<Vec<(&str, f32, bool)>, String> {
        let starts = [text, second.unwrap_or("")].map(|part| [0, part.len() as i64]);
        let texts = |part: &str, starts: &[i64; 2]| Texts {
            bytes: part.as_ptr().cast(),
            starts: starts.as_ptr(),
            count: 1,
        };
        let first = texts(text, &starts[0]);
        let other = second.map(|part| texts(part, &starts[1]));
        let tasks = Tasks { numbers: &TASK, count: 1 };
        let mut answers = vec![0f32; self.labels.len()];
        let mut chosen = vec![0u8; self.labels.len()];
        let other = other.as_ref().map_or(ptr::null(), |texts| texts as *const Texts);
        check(unsafe {
            distill_predict(self.handle, &tasks, &first, other, 1, 0, answers.as_mut_ptr(), chosen.as_mut_ptr())
        })?;
        let rows = self.labels.iter().zip(answers).zip(chosen);
        Ok(rows.map(|((label, answer), holds)| (label.as_str(), answer, holds != 0)).collect())
    }
}

impl Drop for Student {
    fn drop(&mut self) {
        unsafe { distill_close(self.handle) }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    let student = Student::open(&arguments[1])?;
    for (label, answer, holds) in student.predict(&arguments[2], arguments.get(3).map(String::as_str))? {
        println!("{label} {answer:.4}{}", if holds { " <" } else { "" });
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if !(3..=4).contains(&arguments.len()) {
        eprintln!("usage: {} FILE TEXT [SECOND TEXT]", arguments[0]);
        std::process::exit(2);
    }
    if let Err(message) = run(&arguments) {
        eprintln!("{message}");
        std::process::exit(2);
    }
}
