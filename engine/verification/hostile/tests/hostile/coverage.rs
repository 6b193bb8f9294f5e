//! That nothing a member serves is without an attacker: every RPC, and every port.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorSet;

use crate::attackers;
use crate::member::program;

/// All that is served over gRPC, as `package.Service/Method`.
fn rpcs() -> BTreeSet<String> {
    let sets = [
        dengine_protocol::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
    ];
    let mut rpcs = BTreeSet::new();
    for set in sets {
        for file in FileDescriptorSet::decode(set).unwrap().file {
            for service in &file.service {
                let of = |method: &prost_types::MethodDescriptorProto| {
                    format!("{}.{}/{}", file.package(), service.name(), method.name())
                };
                rpcs.extend(service.method.iter().map(of));
            }
        }
    }
    rpcs
}

/// The same of etcd's API, which is served without reflection: by what it is generated from.
fn etcd_rpcs() -> BTreeSet<String> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etcd/proto");
    let mut rpcs = BTreeSet::new();
    for package in fs_err::read_dir(protos).unwrap() {
        for file in fs_err::read_dir(package.unwrap().path()).unwrap() {
            let text = fs_err::read_to_string(file.unwrap().path()).unwrap();
            rpcs.extend(rpcs_of(&text));
        }
    }
    rpcs
}

fn rpcs_of(proto: &str) -> Vec<String> {
    let (mut package, mut service, mut rpcs) = ("", "", Vec::new());
    for line in proto.lines() {
        let words = line.split([' ', ';', '(']).filter(|it| !it.is_empty());
        match words.take(2).collect::<Vec<_>>()[..] {
            ["package", name] => package = name,
            ["service", name] => service = name,
            ["rpc", name] => rpcs.push(format!("{package}.{service}/{name}")),
            _ => {}
        }
    }
    rpcs
}

/// All that is listened on, as the settings name it.
fn ports() -> BTreeSet<String> {
    let help = Command::new(program()).args(["serve", "--help"]).output();
    let help = String::from_utf8(help.unwrap().stdout).unwrap();
    let flags = help
        .split_whitespace()
        .filter_map(|it| it.strip_prefix("--"));
    let ports = flags.filter(|it| it.starts_with("listen-"));
    ports.map(str::to_owned).collect()
}

/// Whoever adds an RPC or a port adds its attacker; see `attackers/`.
#[test]
fn every_rpc_and_every_port_has_an_attacker() {
    let attacked: BTreeSet<String> = attackers::all()
        .flat_map(|it| it.on)
        .map(|&it| it.to_owned())
        .collect();
    let (rpcs, etcd_rpcs, ports) = (rpcs(), etcd_rpcs(), ports());
    assert!(rpcs.len() > 20 && ports.len() >= 5, "{rpcs:?} {ports:?}");
    assert!(etcd_rpcs.len() > 40, "{etcd_rpcs:?}");
    let served: BTreeSet<String> = &(&rpcs | &etcd_rpcs) | &ports;
    let safe: Vec<_> = served.difference(&attacked).collect();
    assert!(safe.is_empty(), "nobody attacks {safe:?}");
    let gone: Vec<_> = attacked.difference(&served).collect();
    assert!(gone.is_empty(), "attacked, but not served: {gone:?}");
}

#[test]
fn attackers_have_names_of_their_own() {
    let names: Vec<_> = attackers::all().map(|it| it.name).collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(names.len(), distinct.len(), "{names:?}");
    assert!(!distinct.contains(&crate::TOGETHER));
}
