/* Stands between a process and its file operations (LD_PRELOAD): counts those below one folder, and at a chosen one
 * does what a test wants done: a signal, an error from then on, a limit. Until `torture_arm` it only passes on.
 *
 * What it sees is what the system sees: Python's files, Arrow's, DuckDB's and safetensors' alike. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAX_FD 65536
#define REAL(name) static __typeof__(&name) real; if (!real) real = dlsym(RTLD_NEXT, #name)

static char folder[4096];
static size_t folder_length;
static atomic_long count;
static long chosen;           /* number of the operation, from 1; 0: none */
static int signal_number;     /* sent at that operation … */
static int signals_left;      /* … and at so many after it */
static int failure;           /* errno of that operation and all later ones */
static int limited_resource = -1;
static rlim_t limit;
static long clock_step_s;     /* how far the clock jumps then */
static int log_fd = -1;
static char is_watched[MAX_FD];

void torture_arm(const char *watched, long at, int signal, int repeats, int error, int resource, long value,
                 long step_s, int log) {
    strncpy(folder, watched, sizeof folder - 1);
    folder_length = strlen(folder);
    count = 0;
    chosen = at;
    signal_number = signal;
    signals_left = repeats;
    failure = error;
    limited_resource = resource;
    limit = (rlim_t)value;
    clock_step_s = step_s;
    log_fd = log;
}

long torture_count(void) { return count; }

static rlim_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file) {
        if (fscanf(file, "%lu", &pages) != 1) pages = 0;
        fclose(file);
    }
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* Counts an operation, does what is to be done at it, and says whether it shall fail. */
static int reached(const char *name, const char *path) {
    long number = ++count;
    int saved = errno;
    if (log_fd >= 0) dprintf(log_fd, "%s %s\n", name, path ? path : "?");
    errno = saved;
    if (!chosen || number < chosen) return 0;
    if (signal_number && number <= chosen + signals_left) kill(getpid(), signal_number);
    if (limited_resource >= 0 && number == chosen) {
        struct rlimit now;
        getrlimit(limited_resource, &now);
        now.rlim_cur = limit + (limited_resource == RLIMIT_AS ? address_space() : 0);
        setrlimit(limited_resource, &now);
    }
    int frees = !strcmp(name, "remove") || !strcmp(name, "rename"); /* a full disk allows that */
    if (!failure || (failure == ENOSPC && frees)) return 0;
    errno = failure;
    return 1;
}

static int is_below(const char *path) {
    return folder_length && path && !strncmp(path, folder, folder_length) &&
           (path[folder_length] == '/' || !path[folder_length]);
}

/* The path that an `…at` call means, in `buffer`. */
static const char *at(int directory, const char *path, char *buffer, size_t size) {
    char link[64];
    if (!folder_length || path[0] == '/' || directory == AT_FDCWD) return path;
    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t length = readlink(link, buffer, size - 1);
    if (length < 0) return path;
    snprintf(buffer + length, size - length, "/%s", path);
    return buffer;
}

static int opened(int fd, const char *path, int flags) {
    (void)flags;
    if (fd >= 0 && fd < MAX_FD) is_watched[fd] = is_below(path); /* also to read: folders are flushed so */
    return fd;
}

static int refused(const char *name, const char *path) { return is_below(path) && reached(name, path); }
static int fd_refused(const char *name, int fd) {
    return fd >= 0 && fd < MAX_FD && is_watched[fd] && folder_length && reached(name, "");
}

#define MODE va_list list; va_start(list, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; va_end(list)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE; REAL(name); \
        if (WRITES(flags) && refused("open", path)) return -1; \
        return opened(real(path, flags, mode), path, flags); \
    }
#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        MODE; REAL(name); char buffer[8192]; \
        const char *whole = at(directory, path, buffer, sizeof buffer); \
        if (WRITES(flags) && refused("open", whole)) return -1; \
        return opened(real(directory, path, flags, mode), whole, flags); \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

/* A write that is killed is torn: half of it is in the file. */
static size_t torn(size_t size) { return count + 1 == chosen && signal_number == SIGKILL ? size / 2 : 0; }

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (fd >= 0 && fd < MAX_FD && is_watched[fd] && folder_length) {
        if (torn(size)) real(fd, data, torn(size));
        if (reached("write", "")) return -1;
    }
    return real(fd, data, size);
}
#define PWRITE(name, offset_t) \
    ssize_t name(int fd, const void *data, size_t size, offset_t offset) { \
        REAL(name); \
        return fd_refused("write", fd) ? -1 : real(fd, data, size, offset); \
    }
PWRITE(pwrite, off_t) PWRITE(pwrite64, off64_t)
ssize_t writev(int fd, const struct iovec *parts, int number) {
    REAL(writev);
    return fd_refused("write", fd) ? -1 : real(fd, parts, number);
}
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    REAL(copy_file_range);
    return fd_refused("write", out) ? -1 : real(in, from, out, to, size, flags);
}
#include <sys/sendfile.h>
ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
    REAL(sendfile);
    return fd_refused("write", out) ? -1 : real(out, in, offset, size);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    REAL(sendfile64);
    return fd_refused("write", out) ? -1 : real(out, in, offset, size);
}
int ftruncate(int fd, off_t size) { REAL(ftruncate); return fd_refused("truncate", fd) ? -1 : real(fd, size); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); return fd_refused("truncate", fd) ? -1 : real(fd, size); }
int fsync(int fd) { REAL(fsync); return fd_refused("flush", fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fd_refused("flush", fd) ? -1 : real(fd); }

#define PATH(name, what) int name(const char *path) { REAL(name); return refused(what, path) ? -1 : real(path); }
PATH(unlink, "remove") PATH(rmdir, "remove")
int mkdir(const char *path, mode_t mode) { REAL(mkdir); return refused("mkdir", path) ? -1 : real(path, mode); }
int mkdirat(int directory, const char *path, mode_t mode) {
    REAL(mkdirat); char buffer[8192];
    return refused("mkdir", at(directory, path, buffer, sizeof buffer)) ? -1 : real(directory, path, mode);
}
int unlinkat(int directory, const char *path, int flags) {
    REAL(unlinkat); char buffer[8192];
    return refused("remove", at(directory, path, buffer, sizeof buffer)) ? -1 : real(directory, path, flags);
}
int rename(const char *old, const char *path) { REAL(rename); return refused("rename", path) ? -1 : real(old, path); }
int renameat(int from, const char *old, int to, const char *path) {
    REAL(renameat); char buffer[8192];
    return refused("rename", at(to, path, buffer, sizeof buffer)) ? -1 : real(from, old, to, path);
}
int renameat2(int from, const char *old, int to, const char *path, unsigned flags) {
    REAL(renameat2); char buffer[8192];
    return refused("rename", at(to, path, buffer, sizeof buffer)) ? -1 : real(from, old, to, path, flags);
}
int link(const char *old, const char *path) { REAL(link); return refused("link", path) ? -1 : real(old, path); }
int linkat(int from, const char *old, int to, const char *path, int flags) {
    REAL(linkat); char buffer[8192];
    return refused("link", at(to, path, buffer, sizeof buffer)) ? -1 : real(from, old, to, path, flags);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME && clock_step_s && chosen && count >= chosen) now->tv_sec += clock_step_s;
    return result;
}
