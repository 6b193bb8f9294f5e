//! The command line of `dengine serve`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::free_port;

/// Where a member listens.
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    pub client: SocketAddr,
    /// For other members.
    pub peer: SocketAddr,
    /// For people. `None` leaves the flag out: the first releases did not know it.
    pub admin: Option<SocketAddr>,
    /// For probes and metrics.
    pub monitor: SocketAddr,
    /// For clients of etcd, if it serves these.
    pub etcd: Option<SocketAddr>,
}

impl Listen {
    /// Four free ports of loopback; clients of etcd are not served.
    pub fn free() -> Self {
        let free = || (Ipv4Addr::LOCALHOST, free_port()).into();
        Self {
            client: free(),
            peer: free(),
            admin: Some(free()),
            monitor: free(),
            etcd: None,
        }
    }

    /// The same, with one more for clients of etcd.
    pub fn free_with_etcd() -> Self {
        Self {
            etcd: Some((Ipv4Addr::LOCALHOST, free_port()).into()),
            ..Self::free()
        }
    }
}

/// Completes a command that is the server, or becomes it: what every start of `dengine serve`
/// names. Other flags and variables may follow.
pub fn serve(command: &mut Command, name: &str, listen: &Listen, data_dir: &Path) {
    without_settings(command);
    command
        .args(["serve", "--name", name])
        .args(["--listen-client", &listen.client.to_string()])
        .args(["--listen-peer", &listen.peer.to_string()])
        .args(["--listen-monitor", &listen.monitor.to_string()]);
    if let Some(admin) = listen.admin {
        command.args(["--listen-admin", &admin.to_string()]);
    }
    if let Some(etcd) = listen.etcd {
        command.args(["--listen-etcd", &etcd.to_string()]);
    }
    command.arg("--data-dir").arg(data_dir);
}

/// The program under test, for test programs of other packages than its own: beside the test
/// program, where cargo puts both, unless `DENGINE_BIN` names another one.
///
/// Cargo does not build it for such a test. `made_by` does, and should be how the test is run.
///
/// # Panics
/// There is no such program, or it is older than its sources, so that a test would judge the code
/// of yesterday.
pub fn built_program(made_by: &str) -> PathBuf {
    if let Some(named) = std::env::var_os("DENGINE_BIN") {
        return named.into();
    }
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("dengine");
    assert!(
        built.exists(),
        "{} is missing: `{made_by}` builds it, or DENGINE_BIN names another one",
        built.display()
    );
    if let Some(source) = newer_source(&built) {
        panic!(
            "{} is older than {source}: `{made_by}` builds it again",
            built.display()
        );
    }
    built
}

/// A file that the program was made of and that has changed since, as cargo's list of them beside
/// it says.
fn newer_source(program: &Path) -> Option<String> {
    let sources = fs_err::read_to_string(program.with_extension("d")).ok()?;
    let (_, sources) = sources.split_once(": ")?;
    let changed = |path: &str| fs_err::metadata(path).and_then(|it| it.modified()).ok();
    let built = changed(program.to_str()?)?;
    let mut sources = sources.split_ascii_whitespace();
    let newer = sources.find(|path| changed(path).is_some_and(|at| at > built));
    newer.map(str::to_owned)
}

/// The caller's own settings are not those of the program under test.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"DENGINE_") {
            command.env_remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(listen: &Listen) -> Vec<String> {
        let mut command = Command::new("dengine");
        serve(&mut command, "m0", listen, Path::new("/data"));
        let words = command.get_args().map(|it| it.to_str().unwrap().to_owned());
        words.collect()
    }

    #[test]
    fn a_program_older_than_one_of_its_sources_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["a.rs", "b.rs", "dengine"] {
            fs_err::write(path(name), "").unwrap();
        }
        let (a, b) = (path("a.rs"), path("b.rs"));
        let made_of = format!("dengine: {} {}\n", a.display(), b.display());
        fs_err::write(path("dengine.d"), made_of).unwrap();
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
        let touch = |name| {
            let file = std::fs::File::options()
                .append(true)
                .open(path(name))
                .unwrap();
            file.set_modified(later).unwrap();
        };
        touch("dengine");
        assert_eq!(newer_source(&path("dengine")), None);
        let earlier = later - std::time::Duration::from_secs(30);
        let program = std::fs::File::options()
            .append(true)
            .open(path("dengine"))
            .unwrap();
        program.set_modified(earlier).unwrap();
        touch("b.rs");
        assert_eq!(newer_source(&path("dengine")).as_deref(), b.to_str());
    }

    #[test]
    fn a_member_listens_at_all_of_its_addresses_and_an_old_one_at_those_it_knows() {
        let mut listen = Listen::free();
        let admin = listen.admin.expect("newer releases have it").to_string();
        for address in [listen.client, listen.peer, listen.monitor] {
            assert!(flags(&listen).contains(&address.to_string()));
        }
        assert!(flags(&listen).contains(&admin));
        listen.admin = None;
        for flag in ["--listen-admin", "--listen-etcd"] {
            assert!(!flags(&listen).iter().any(|it| it == flag));
        }
        let listen = Listen::free_with_etcd();
        let etcd = listen.etcd.expect("it was asked for").to_string();
        assert!(flags(&listen).contains(&etcd));
    }
}
