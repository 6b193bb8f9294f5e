//! Who shares the machine, and asks the member for nothing.

use std::time::{Duration, Instant};

use super::{Arena, Attacker};

/// As many processors as the machine may have; the cgroup lets it have one's worth.
const THREADS: usize = 2;

/// What honest clients meet beside it is their own time on such a machine: it differs from an
/// attacker in what it asks for only.
pub(crate) const NEIGHBOUR: Attacker = Attacker {
    name: "neighbour",
    does: "uses its processor, and asks the member for nothing",
    on: &[],
    run: |arena| {
        for _ in 0..THREADS {
            let arena = arena.clone();
            std::thread::spawn(move || burn(&arena));
        }
        Box::pin(std::future::pending())
    },
};

/// As long as there is the process.
fn burn(arena: &Arena) {
    const COUNTED: Duration = Duration::from_millis(1);
    loop {
        let begun = Instant::now();
        while begun.elapsed() < COUNTED {
            std::hint::spin_loop();
        }
        arena.tally.did(1);
    }
}
