//! The `dengine` program.

mod allocator;
mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
