/* Stands between a member and the disk: delays, counts and fails fsync and fdatasync.
 *
 * SHIM_DELAY_US     microseconds that every call takes longer
 * SHIM_COUNT_FILE   grows by one byte with every call that succeeded
 * SHIM_FAIL_FILE    while this file exists, every call fails with EIO
 * SHIM_HANG_FILE    while this file exists, no call returns
 * SHIM_SLOW_FILE    while this file exists, every read of the state's tables takes two milliseconds longer
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int synced(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *fail = getenv("SHIM_FAIL_FILE");
    const char *delay = getenv("SHIM_DELAY_US");
    const char *count = getenv("SHIM_COUNT_FILE");
    const char *hang = getenv("SHIM_HANG_FILE");
    while (hang != NULL && access(hang, F_OK) == 0) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
    }
    if (fail != NULL && access(fail, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    if (delay != NULL) {
        long us = atol(delay);
        struct timespec pause = {us / 1000000, (us % 1000000) * 1000};
        while (nanosleep(&pause, &pause) != 0 && errno == EINTR) {
        }
    }
    int result = real(fd);
    if (result == 0 && count != NULL) {
        int file = open(count, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (file >= 0) {
            if (write(file, "s", 1) != 1) {
                abort();
            }
            close(file);
        }
    }
    return result;
}

int fsync(int fd) { return synced("fsync", fd); }

int fdatasync(int fd) { return synced("fdatasync", fd); }

static void slow_down(int fd) {
    const char *slow = getenv("SHIM_SLOW_FILE");
    char link[64], path[4096];
    if (slow == NULL || access(slow, F_OK) != 0) {
        return;
    }
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path) - 1);
    if (length > 4 && memcmp(path + length - 4, ".sst", 4) == 0) {
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
    }
}

ssize_t pread(int fd, void *buffer, size_t count, off_t offset) {
    ssize_t (*real)(int, void *, size_t, off_t) =
        (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    slow_down(fd);
    return real(fd, buffer, count, offset);
}

ssize_t pread64(int fd, void *buffer, size_t count, off64_t offset) {
    ssize_t (*real)(int, void *, size_t, off64_t) =
        (ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    slow_down(fd);
    return real(fd, buffer, count, offset);
}
