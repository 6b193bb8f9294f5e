//! Three real members that call themselves what the operator calls those of a cluster `demo`: names
//! that lead nowhere from here.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use dengine_crds::names::cluster::{member_host, pod};
use dengine_testkit::{Listen, Process, built_program, serve};
use tempfile::TempDir;

pub(crate) struct Members {
    members: Vec<(Listen, Option<Process>)>,
    home: TempDir,
}

fn program() -> Command {
    Command::new(built_program("make dengine"))
}

impl Members {
    /// Formed into a cluster; the first one leads.
    pub(crate) fn form() -> Self {
        let home = TempDir::new().unwrap();
        let members = (0..3).map(|place| {
            let listen = Listen::free();
            (listen, Some(start(place, &listen, home.path())))
        });
        let members: Vec<_> = members.collect();
        let admin = |(listen, _): &(Listen, _)| listen.admin.unwrap().to_string();
        let endpoints = members.iter().map(admin).collect::<Vec<_>>().join(",");
        let mut init = program();
        let formed = init.args(["init", "--endpoints", &endpoints]).output();
        let formed = formed.unwrap();
        assert!(formed.status.success(), "{formed:?}");
        Self { members, home }
    }

    /// Where each serves clients.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|it| it.0.client).collect()
    }

    pub(crate) fn kill(&mut self, place: usize) {
        self.members[place].1.take().expect("it runs").kill();
    }

    pub(crate) fn start(&mut self, place: usize) {
        let (listen, process) = &mut self.members[place];
        *process = Some(start(place, listen, self.home.path()));
    }
}

fn start(place: usize, listen: &Listen, home: &Path) -> Process {
    let ordinal = u32::try_from(place).expect("there are three");
    let name = pod("demo", ordinal);
    let mut command = program();
    serve(&mut command, &name, listen, &home.join(&name));
    let host = member_host("demo", "test", &name);
    command.arg(format!("--advertise-client={host}:4100"));
    Process::start(&mut command, &home.join(format!("{name}.log")))
}
