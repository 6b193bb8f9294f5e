//! Listening sockets of the server and of the operator.
//!
//! `[::]` means every address of this machine, whatever its settings are: IPv6 and IPv4 through one
//! socket, also where `net.ipv6.bindv6only` is set, and IPv4 alone where the kernel has no IPv6. So
//! one command line works in every Kubernetes, whichever family its pods have.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Length of the accept queue; the kernel may limit it further.
const BACKLOG: i32 = 1024;

/// Listens on `address`. The socket is non-blocking, as tokio's `TcpListener::from_std` requires.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_with(address, &bound)
}

/// `bind` is a parameter so that a test can stand in for a kernel without IPv6.
fn listen_with(
    address: SocketAddr,
    bind: &dyn Fn(SocketAddr) -> io::Result<Socket>,
) -> io::Result<TcpListener> {
    let socket = match bind(address) {
        Err(error) if is_every_ipv6(address) && is_without_ipv6(&error) => {
            let ipv4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            tracing::info!(%address, instead = %ipv4, "this machine has no IPv6");
            bind(ipv4)?
        }
        bound => bound?,
    };
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if is_every_ipv6(address) {
        socket.set_only_v6(false)?;
    }
    // As the standard library and tokio do: a port in TIME_WAIT is free.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn is_every_ipv6(address: SocketAddr) -> bool {
    matches!(address.ip(), IpAddr::V6(ip) if ip.is_unspecified())
}

/// Whether the kernel has no IPv6 (`EAFNOSUPPORT`) or no IPv6 address (`EADDRNOTAVAIL`).
fn is_without_ipv6(error: &io::Error) -> bool {
    const EAFNOSUPPORT: i32 = 97;
    error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == ErrorKind::AddrNotAvailable
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    const EVERY: &str = "[::]:0";

    fn port_of(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    fn has_ipv6() -> bool {
        TcpListener::bind("[::1]:0").is_ok()
    }

    #[test]
    fn every_address_is_reached_by_both_families() {
        let listener = listen(EVERY.parse().unwrap()).unwrap();
        let port = port_of(&listener);
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        if has_ipv6() {
            TcpStream::connect(("::1", port)).unwrap();
        }
    }

    #[test]
    fn a_kernel_without_ipv6_listens_on_every_ipv4_address() {
        for errno in [97, 99] {
            let without = |address: SocketAddr| match address {
                SocketAddr::V6(_) => Err(io::Error::from_raw_os_error(errno)),
                SocketAddr::V4(_) => bound(address),
            };
            let listener = listen_with(EVERY.parse().unwrap(), &without).unwrap();
            assert!(listener.local_addr().unwrap().ip().is_unspecified());
            TcpStream::connect(("127.0.0.1", port_of(&listener))).unwrap();
            // There is no fallback for a single IPv6 address.
            assert!(listen_with("[::1]:0".parse().unwrap(), &without).is_err());
        }
    }

    #[test]
    fn a_port_in_use_is_refused() {
        let taken = listen(EVERY.parse().unwrap()).unwrap();
        let again = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port_of(&taken));
        assert_eq!(listen(again).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn a_specific_address_listens_on_that_address_only() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!(listener.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
    }
}
