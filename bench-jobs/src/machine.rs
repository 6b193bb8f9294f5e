//! What a result says of the machine and the command that measured it.

use std::fs::read_to_string;

use dengine_bench_model::results::Machine;

/// The schema of the result allows no more, and no longer ones.
const ARGUMENTS_MAX: usize = 64;
const ARGUMENT_CHARS_MAX: usize = 1024;

/// The command line of this process, with the program's name for its path.
#[must_use]
pub fn command() -> Vec<String> {
    let arguments = std::env::args().skip(1).take(ARGUMENTS_MAX - 1);
    let shortened = arguments.map(|argument| argument.chars().take(ARGUMENT_CHARS_MAX).collect());
    std::iter::once("dengine-bench".to_owned())
        .chain(shortened)
        .collect()
}

/// What Linux tells of the machine; `None` elsewhere.
#[must_use]
pub fn machine() -> Option<Machine> {
    let processors = std::thread::available_parallelism().ok()?.get() as u32;
    let information = read_to_string("/proc/cpuinfo").ok()?;
    let memory = read_to_string("/proc/meminfo").ok()?;
    let kernel = |name| read_to_string(format!("/proc/sys/kernel/{name}")).ok();
    let (system, release) = (kernel("ostype")?, kernel("osrelease")?);
    Some(Machine {
        processor: field(&information, "model name")
            .unwrap_or("unknown")
            .to_owned(),
        processors,
        memory_bytes: kibibytes(field(&memory, "MemTotal")?)? * 1024,
        kernel: format!("{} {}", system.trim(), release.trim()),
    })
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    fields.find_map(|(found, value)| (found.trim() == name).then(|| value.trim()))
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let machine = machine().unwrap();
        assert!(
            machine.processors > 0 && machine.memory_bytes > 1 << 20,
            "{machine:?}"
        );
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 85\nmodel name\t: Some CPU @ 2.0: GHz\n";
        assert_eq!(field(text, "model name"), Some("Some CPU @ 2.0: GHz"));
        assert_eq!(kibibytes("1024 kB"), Some(1024));
    }
}
