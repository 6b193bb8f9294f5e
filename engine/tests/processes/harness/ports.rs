//! Ports for members: below the range from which the system picks ports for outgoing connections, so that
//! a member that is down for a while finds its port free when it comes back.

use std::{
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A port that nobody listens on, and that no other test of this process gets.
pub(crate) fn free_port() -> u16 {
    // Processes of this test that run at the same time begin at different places.
    let begin = (std::process::id() % u32::from(COUNT)) as u16;
    for _ in 0..COUNT {
        let step = TAKEN.fetch_add(1, Ordering::Relaxed);
        let offset = (u32::from(begin) + u32::from(step)) % u32::from(COUNT);
        let port = FIRST + offset as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}
