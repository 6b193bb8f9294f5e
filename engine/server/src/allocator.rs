//! The program's allocator.

/// Faster than the system's on many small allocations from several threads, which is what serving
/// is. It takes the place of the system's (the feature `override`), so that it is also RocksDB's,
/// which allocates for every iterator and every block that it reads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives back to the system what no thread has in use. Of its own accord the allocator does so
/// after a second, in which whoever sends large requests fills, and frees, several hundred MiB.
#[expect(
    unsafe_code,
    reason = "a function of the allocator that its crate does not wrap"
)]
pub(crate) fn give_back() {
    // SAFETY: it may be called at any time by any thread, and takes nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: usize = 1 << 20;
    const BLOCKS: usize = 128;

    /// What this process has in memory that is no file's.
    fn resident_bytes() -> usize {
        let status = fs_err::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|it| it.strip_prefix("RssAnon:"));
        let kilobytes = line.unwrap().trim().strip_suffix(" kB").unwrap();
        kilobytes.parse::<usize>().unwrap() * 1024
    }

    #[test]
    #[expect(unsafe_code, reason = "what C++ calls")]
    fn it_is_also_the_allocator_of_rocksdb() {
        // SAFETY: of the memory only the place is looked at, before it is freed.
        let is_ours = unsafe {
            let memory = libc::malloc(100);
            let is_ours = libmimalloc_sys::mi_is_in_heap_region(memory);
            libc::free(memory);
            is_ours
        };
        assert!(is_ours);
    }

    #[test]
    fn what_another_thread_freed_is_given_back_at_once() {
        let used = std::thread::spawn(|| {
            let blocks: Vec<_> = (0..BLOCKS).map(|_| vec![7_u8; BLOCK_BYTES]).collect();
            std::hint::black_box(&blocks);
            resident_bytes()
        });
        let used = used.join().unwrap();
        give_back();
        let left = resident_bytes();
        assert!(left + BLOCKS * BLOCK_BYTES / 2 < used, "{left} of {used}");
    }
}
