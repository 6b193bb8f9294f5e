//! Panics of simulated members: a process ends by them, the simulation does not.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, or returns what it panicked with; nothing is printed then.
pub(super) fn guard<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    keep_quiet();
    GUARDED.set(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(false);
    done.map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned())
    })
}

/// Panics outside of a guard are printed as ever.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                print(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::guard;

    #[test]
    fn a_panic_becomes_its_message() {
        assert_eq!(guard(|| 1), Ok(1));
        assert_eq!(
            guard(|| panic!("no {}", 2)),
            Err::<(), _>("no 2".to_owned())
        );
    }
}
