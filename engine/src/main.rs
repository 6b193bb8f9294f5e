//! The `dengine` program.

mod cli;

/// Faster than the system's on many small allocations from several threads, which is what serving is.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::run()
}
