//! Ports for members.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the range from which the system picks ports for outgoing connections, so that a member
/// that is down for a while finds its port free when it comes back.
const FIRST: u32 = 10_000;
const COUNT: u32 = 20_000;

static TAKEN: AtomicU32 = AtomicU32::new(0);

/// A port of loopback that nobody listens on, and that this function gives nobody else in this
/// process.
///
/// # Panics
/// No port is free.
pub fn free_port() -> u16 {
    // Test programs that run at the same time begin far from each other.
    let begin = std::process::id().wrapping_mul(101);
    for _ in 0..COUNT {
        let offset = begin.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("below 30,000");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_nor_while_somebody_listens() {
        let first = free_port();
        assert_ne!(free_port(), first);
        let next = free_port();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, next + 1));
        if taken.is_ok() {
            assert_ne!(free_port(), next + 1);
        }
    }
}
