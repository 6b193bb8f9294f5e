//! The workloads that have names, and the profiles that list them. A profile is a promise: its name
//! means the same load in the tool, in a `DEngineBenchmark` and in a report, so that two results
//! can be put side by side.

use crate::results::ReadConsistency::{self, Eventual, Lease, Linearizable};
use crate::results::{Shape, Workload};

/// Bytes of each key of a named workload, unless its profile is about another size.
pub const KEY_SIZE: u32 = 8;
/// Bytes of each key in T4's suite.
const T4_KEY_SIZE: u32 = 64;
/// Bytes of each value of a named workload, unless its profile is about another size.
pub const VALUE_SIZE: u32 = 256;

/// Requests of a workload that is to last go on for so long: what begins and ends with the load
/// is then a small part of it, however fast the system.
pub const LASTS_SECONDS: f64 = 5.0;

/// Values from this size on are a matter of the disk.
const LARGE_VALUE_BYTES: u32 = 64 << 10;

/// How many times less CPU time than etcd's the servers set out to spend on a request, in workloads
/// that have a goal.
pub const SERVER_CPU_GOAL: f64 = 5.0;

/// Workloads that are measured one after the other, in this order.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// As `--profile` spells it.
    pub name: &'static str,
    /// What it is for, in a line.
    pub about: &'static str,
    /// What is measured.
    pub workloads: &'static [NamedWorkload],
}

/// A load with a name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedWorkload {
    /// Unique in its profile.
    pub name: &'static str,
    /// What each request does.
    pub does: Does,
    pub connections: u32,
    /// Clients, all in flight at once.
    pub clients: u32,
    /// Requests over all clients.
    pub total: u64,
    /// For so long they go on where those take less.
    pub at_least_seconds: Option<f64>,
    /// Which keys are used.
    pub keys: Keys,
    /// Requests wanted per second over all clients; `None`: as fast as the answers come.
    pub rate: Option<f64>,
    /// Bytes of each key.
    pub key_size: u32,
    /// Bytes of each value.
    pub value_size: u32,
    /// The throughput that DEngine sets out to reach, as a multiple of etcd's beside it.
    pub goal: Option<f64>,
    /// The 99th percentile of the latency that DEngine sets out to stay within.
    pub p99_goal: Option<P99Goal>,
}

/// What a 99th percentile is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum P99Goal {
    /// etcd's of the same workload, and so many microseconds more.
    EtcdAndUs(u64),
    /// Its own of the workload of this name in the same profile, so many times.
    Times(f64, &'static str),
}

/// What each request of a named workload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Writes its key.
    Put,
    /// Reads its key.
    Get(ReadConsistency),
    /// Reads, linearizably, in so many percent of the cases, else writes.
    Mixed(u32),
    /// Writes, and waits until so many watches have told of it.
    Watch(u32),
    /// Writes its client's own key, if that is as its last write left it.
    Swap,
    /// Writes at the leader, and waits until a follower has shown it.
    Seen,
    /// Writes keys that are there, while so many clients list all of them.
    List(u32),
    /// Reads so many keys in a row, or all there are.
    Scan(Option<u32>),
}

/// Which keys a named workload uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// As many as requests, in ascending order.
    InOrder,
    /// Any out of so many.
    OutOf(u64),
}

use Does::{Get, List, Mixed, Put, Scan, Seen, Swap, Watch};
use Keys::{InOrder, OutOf};

/// The workload that a person means by a name: one of `basic`, or another profile's as
/// `PROFILE/NAME`.
#[must_use]
pub fn workload_named(name: &str) -> Option<&'static NamedWorkload> {
    let (of, name) = name.split_once('/').unwrap_or((BASIC, name));
    profile(of)?.workload(name)
}

/// The profile whose workloads need no profile before their names.
pub const BASIC: &str = "basic";

/// Every profile. A goal stands beside the load for which issue and README promise it.
#[rustfmt::skip]
pub const PROFILES: [Profile; 9] = [
    Profile { name: "standard", about: "the six workloads of d-engine's report: one client, then \
        1000 over 200 connections", workloads: &lasting([
        // name                 does              conns clients    total      keys            goal
        workload("single-write",      Put,                  1,      1,     10_000, InOrder,           Some(4.0)),
        workload("write",             Put,                200,  1_000,    100_000, InOrder,           Some(7.0)),
        workload("linearizable-read", Get(Linearizable),  200,  1_000,    100_000, InOrder,           Some(8.0)),
        workload("lease-read",        Get(Lease),         200,  1_000,    100_000, InOrder,           Some(8.0)),
        workload("eventual-read",     Get(Eventual),      200,  1_000,    100_000, InOrder,           Some(8.0)),
        workload("hot-key-read",      Get(Linearizable),  200,  1_000,    100_000, OutOf(10),         Some(8.0)),
    ])},
    Profile { name: "quick", about: "the same six with fewer requests: under a minute", workloads: &[
        workload("single-write",      Put,                  1,      1,      1_000, InOrder,           Some(4.0)),
        workload("write",             Put,                200,  1_000,     10_000, InOrder,           Some(7.0)),
        workload("linearizable-read", Get(Linearizable),  200,  1_000,     20_000, InOrder,           Some(8.0)),
        workload("lease-read",        Get(Lease),         200,  1_000,     20_000, InOrder,           Some(8.0)),
        workload("eventual-read",     Get(Eventual),      200,  1_000,     20_000, InOrder,           Some(8.0)),
        workload("hot-key-read",      Get(Linearizable),  200,  1_000,     20_000, OutOf(10),         Some(8.0)),
    ]},
    Profile { name: "small", about: "the earlier shape of that report: 100 clients over 10 \
        connections", workloads: &lasting([
        workload("single-write",      Put,                  1,      1,     10_000, InOrder,           Some(4.0)),
        workload("write",             Put,                 10,    100,    100_000, InOrder,           None),
        workload("linearizable-read", Get(Linearizable),   10,    100,    100_000, InOrder,           None),
        workload("lease-read",        Get(Lease),          10,    100,    100_000, InOrder,           None),
        workload("eventual-read",     Get(Eventual),       10,    100,    100_000, InOrder,           None),
        workload("hot-key-read",      Get(Linearizable),   10,    100,    100_000, OutOf(10),         None),
    ])},
    Profile { name: "dense", about: "1000 clients over 10 connections: what sharing a connection \
        gains", workloads: &lasting([
        workload("write",             Put,                 10,  1_000,    100_000, InOrder,           None),
        workload("linearizable-read", Get(Linearizable),   10,  1_000,    100_000, InOrder,           Some(12.0)),
        workload("lease-read",        Get(Lease),          10,  1_000,    100_000, InOrder,           None),
        workload("eventual-read",     Get(Eventual),       10,  1_000,    100_000, InOrder,           None),
    ])},
    Profile { name: "basic", about: "one client and many, reads beside writes, and watches; also \
        one by one with --workload", workloads: &[
        workload("seq-put",           Put,                  1,      1,      5_000, InOrder,           None),
        workload("par-put",           Put,                 10,    100,     50_000, InOrder,           None),
        workload("seq-get",           Get(Linearizable),    1,      1,     10_000, OutOf(10_000),     None),
        workload("par-get",           Get(Linearizable),   10,    100,    100_000, OutOf(10_000),     None),
        workload("mixed",             Mixed(80),           10,    100,    100_000, OutOf(10_000),     None),
        workload("watch",             Watch(1),            10,    100,     50_000, OutOf(100),        None),
        workload("watch-fan-out",     Watch(100),          10,      1,      2_000, OutOf(1),          None),
    ]},
    Profile { name: "t4", about: "the sizes of T4's suite: 50,000 requests, 64-byte keys, 16 \
        clients, half reads in mixed", workloads: &[
        t4(workload("seq-put",        Put,                  1,      1,     50_000, InOrder,           None)),
        t4(workload("par-put",        Put,                 16,     16,     50_000, InOrder,           None)),
        t4(workload("seq-get",        Get(Linearizable),    1,      1,     50_000, InOrder,           None)),
        t4(workload("par-get",        Get(Linearizable),   16,     16,     50_000, InOrder,           None)),
        t4(workload("mixed",          Mixed(50),           16,     16,     50_000, OutOf(50_000),     None)),
        t4(workload("watch",          Watch(1),             1,      1,     50_000, OutOf(1),          None)),
    ]},
    Profile { name: "growth", about: "the loaded workloads on ten million keys; filling them takes \
        minutes", workloads: &lasting([
        workload("linearizable-read", Get(Linearizable),  200,  1_000,    100_000, OutOf(10_000_000), None),
        workload("eventual-read",     Get(Eventual),      200,  1_000,    100_000, OutOf(10_000_000), None),
        workload("mixed",             Mixed(50),          200,  1_000,    100_000, OutOf(10_000_000), None),
        workload("write",             Put,                200,  1_000,    100_000, OutOf(10_000_000), None),
    ])},
    Profile { name: "extra", about: "what the others leave out: Kubernetes' Lease renewals, values \
        of 64 KiB and 1 MiB, 1000 watches of one key, how soon followers show a write, lists of \
        100,000 objects, and writes while a million keys are listed", workloads: &lasting([
        workload("lease-renewal",     Swap,                10,    100,    100_000, OutOf(100),        Some(5.0)),
        // Few keys, for the disk holds each of them and some history; together 650 MiB are written.
        of_bytes(64 << 10,
            workload("put-64k",       Put,                 10,     10,      4_000, OutOf(400),        None)),
        of_bytes(1 << 20,
            workload("put-1m",        Put,                 10,     10,        400, OutOf(40),         None)),
        workload("watch-1000",        Watch(1_000),        10,      1,      1_000, OutOf(1),          None),
        within(P99Goal::EtcdAndUs(2_000),
            workload("put-seen",      Seen,                 1,      1,      2_000, OutOf(1),          None)),
        within(P99Goal::EtcdAndUs(2_000),
            workload("par-put-seen",  Seen,                10,     10,     10_000, OutOf(10),         None)),
        of_bytes(4 << 10,
            workload("paged-list",    Scan(None),           1,      1,         10, OutOf(100_000),    None)),
        // The last, for the members hold a million keys from then on.
        at_rate(1_000.0,
            workload("paced-write",   List(0),             10,     10,     30_000, OutOf(1_000_000),  None)),
        within(P99Goal::Times(2.0, "paced-write"), at_rate(1_000.0,
            workload("list-while-writing", List(1),        10,     10,     30_000, OutOf(1_000_000),  None))),
    ])},
    Profile { name: "etcd", about: "what clients of etcd do, with nothing that only DEngine has: \
        with --wire etcd the same client loads both", workloads: &lasting([
        workload("single-write",      Put,                  1,      1,      2_000, InOrder,           None),
        workload("write",             Put,                200,  1_000,     50_000, InOrder,           None),
        workload("linearizable-read", Get(Linearizable),  200,  1_000,     50_000, InOrder,           None),
        workload("serializable-read", Get(Eventual),      200,  1_000,     50_000, InOrder,           None),
        workload("range-of-100",      Scan(Some(100)),     10,    100,     10_000, OutOf(50_000),     None),
        workload("compare-and-put",   Swap,                10,    100,     30_000, OutOf(100),        None),
        workload("watch-1000",        Watch(1_000),        10,      1,        500, OutOf(1),          None),
        // The last, for it makes its keys sixteen times as large.
        of_bytes(4 << 10,
            workload("paged-list",    Scan(None),           1,      1,          5, OutOf(100_000),    None)),
    ])},
];

const fn workload(
    name: &'static str,
    does: Does,
    connections: u32,
    clients: u32,
    total: u64,
    keys: Keys,
    goal: Option<f64>,
) -> NamedWorkload {
    NamedWorkload {
        name,
        does,
        connections,
        clients,
        total,
        at_least_seconds: None,
        keys,
        rate: None,
        key_size: KEY_SIZE,
        value_size: VALUE_SIZE,
        goal,
        p99_goal: None,
    }
}

/// The same, and requests go on until [`LASTS_SECONDS`] have passed, where that
/// [may be](NamedWorkload::may_last).
const fn lasting<const N: usize>(mut workloads: [NamedWorkload; N]) -> [NamedWorkload; N] {
    let mut place = 0;
    while place < N {
        let workload = &mut workloads[place];
        if workload.may_last() {
            workload.at_least_seconds = Some(LASTS_SECONDS);
        }
        place += 1;
    }
    workloads
}

const fn t4(workload: NamedWorkload) -> NamedWorkload {
    NamedWorkload {
        key_size: T4_KEY_SIZE,
        ..workload
    }
}

const fn of_bytes(value_size: u32, workload: NamedWorkload) -> NamedWorkload {
    NamedWorkload {
        value_size,
        ..workload
    }
}

const fn at_rate(per_second: f64, workload: NamedWorkload) -> NamedWorkload {
    NamedWorkload {
        rate: Some(per_second),
        ..workload
    }
}

const fn within(goal: P99Goal, workload: NamedWorkload) -> NamedWorkload {
    NamedWorkload {
        p99_goal: Some(goal),
        ..workload
    }
}

/// The profile of this name.
#[must_use]
pub fn profile(name: &str) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.name == name)
}

/// Says that there is no profile of this name, and which there are.
#[must_use]
pub fn unknown(name: &str) -> String {
    let known = PROFILES.map(|profile| profile.name).join(", ");
    format!("there is no profile {name:?}; there are {known}")
}

impl Profile {
    /// Its workload of this name.
    #[must_use]
    pub fn workload(&self, name: &str) -> Option<&'static NamedWorkload> {
        self.workloads.iter().find(|workload| workload.name == name)
    }
}

impl NamedWorkload {
    /// Whether more requests of this kind are the same load. Not where each inserts a key, for
    /// there are no more, and they would overwrite; nor of a rate, which says how long it takes.
    /// Lists of everything take seconds each, and large values would fill disks.
    const fn may_last(&self) -> bool {
        let inserts = matches!((self.does, self.keys), (Put, InOrder));
        let takes_its_time = self.rate.is_some() || matches!(self.does, Scan(None));
        !inserts && !takes_its_time && self.value_size < LARGE_VALUE_BYTES
    }

    /// The load in full.
    #[must_use]
    pub fn shape(&self) -> Shape {
        let (workload, consistency) = match self.does {
            Put => (Workload::Put, None),
            Get(fresh) => (Workload::Range, Some(fresh)),
            Mixed(_) => (Workload::Mixed, Some(Linearizable)),
            Watch(_) => (Workload::Watch, None),
            Swap => (Workload::Swap, None),
            Seen => (Workload::Seen, None),
            List(_) => (Workload::List, None),
            Scan(_) => (Workload::Scan, None),
        };
        let read_percent = match self.does {
            Mixed(percent) => Some(percent),
            Put | Get(_) | Watch(_) | Swap | Seen | List(_) | Scan(_) => None,
        };
        let watchers = match self.does {
            Watch(watchers) => (watchers != 1).then_some(watchers),
            Put | Get(_) | Mixed(_) | Swap | Seen | List(_) | Scan(_) => None,
        };
        let listers = match self.does {
            List(listers) => (listers != 1).then_some(listers),
            Put | Get(_) | Mixed(_) | Watch(_) | Swap | Seen | Scan(_) => None,
        };
        let scan_keys = match self.does {
            Scan(keys) => keys,
            Put | Get(_) | Mixed(_) | Watch(_) | Swap | Seen | List(_) => None,
        };
        Shape {
            workload,
            consistency,
            connections: self.connections,
            clients: self.clients,
            total: self.total,
            at_least_seconds: self.at_least_seconds,
            key_size: self.key_size,
            key_folder_size: 0,
            value_size: self.value_size,
            key_space: match self.keys {
                InOrder => 0,
                OutOf(keys) => keys,
            },
            sequential_keys: self.keys == InOrder,
            read_percent,
            watchers,
            listers,
            scan_keys,
            rate: self.rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_into_a_result() {
        let mut profiles = HashSet::new();
        for profile in &PROFILES {
            assert!(profiles.insert(profile.name), "{}", profile.name);
            let mut workloads = HashSet::new();
            for workload in profile.workloads {
                assert!(workloads.insert(workload.name), "{}", workload.name);
                assert!(workload.name.len() <= 63 && profile.workloads.len() <= 32);
            }
        }
    }

    #[test]
    fn every_client_has_a_connection_and_a_request() {
        for workload in PROFILES.iter().flat_map(|profile| profile.workloads) {
            let shape = workload.shape();
            let carried = shape.clients * shape.watches_each();
            assert!(shape.connections <= carried, "{}", workload.name);
            assert!(u64::from(shape.clients) <= shape.total, "{}", workload.name);
        }
    }

    #[test]
    fn a_workload_is_found_by_its_name_and_by_that_of_its_profile() {
        let total = |name| workload_named(name).map(|workload| workload.total);
        assert_eq!(total("mixed"), Some(100_000));
        assert_eq!(total("t4/mixed"), Some(50_000));
        assert_eq!(total("standard/hot-key-read"), Some(100_000));
        assert_eq!((total("hot-key-read"), total("t5/mixed")), (None, None));
    }

    #[test]
    fn all_but_what_is_short_by_its_purpose_lasts() {
        let short = ["quick", "basic", "t4"];
        for profile in &PROFILES {
            for workload in profile.workloads {
                let lasts = workload.may_last() && !short.contains(&profile.name);
                let expected = lasts.then_some(LASTS_SECONDS);
                let name = (profile.name, workload.name);
                assert_eq!(workload.shape().at_least_seconds, expected, "{name:?}");
            }
        }
    }

    #[test]
    fn what_inserts_keys_or_fills_disks_does_not_last() {
        let lasts = |name| workload_named(name).unwrap().at_least_seconds.is_some();
        for name in ["standard/lease-read", "growth/write", "extra/lease-renewal"] {
            assert!(lasts(name), "{name}");
        }
        for name in [
            "standard/write",
            "extra/put-64k",
            "etcd/paged-list",
            "extra/paced-write",
        ] {
            assert!(!lasts(name), "{name}");
        }
    }

    #[test]
    fn t4s_sizes_are_those_of_its_suite() {
        for workload in profile("t4").unwrap().workloads {
            let shape = workload.shape();
            assert_eq!((shape.total, shape.key_size), (50_000, 64));
            assert_eq!(shape.value_size, 256);
            assert!([1, 16].contains(&shape.clients), "{}", workload.name);
            assert!(matches!(shape.read_percent, None | Some(50)));
        }
    }

    /// As docs/benchmarks.md has it.
    #[test]
    fn extra_holds_the_loads_that_its_documentation_promises() {
        let shapes = profile("extra").unwrap().workloads.iter().map(|workload| {
            let shape = workload.shape();
            let (connections, clients, total) = (shape.connections, shape.clients, shape.total);
            let of_each = (shape.workload, shape.value_size, shape.key_space);
            (workload.name, of_each, (connections, clients, total))
        });
        let promised = [
            (
                "lease-renewal",
                (Workload::Swap, 256, 100),
                (10, 100, 100_000),
            ),
            ("put-64k", (Workload::Put, 65_536, 400), (10, 10, 4_000)),
            ("put-1m", (Workload::Put, 1_048_576, 40), (10, 10, 400)),
            ("watch-1000", (Workload::Watch, 256, 1), (10, 1, 1_000)),
            ("put-seen", (Workload::Seen, 256, 1), (1, 1, 2_000)),
            ("par-put-seen", (Workload::Seen, 256, 10), (10, 10, 10_000)),
            ("paged-list", (Workload::Scan, 4_096, 100_000), (1, 1, 10)),
            (
                "paced-write",
                (Workload::List, 256, 1_000_000),
                (10, 10, 30_000),
            ),
            (
                "list-while-writing",
                (Workload::List, 256, 1_000_000),
                (10, 10, 30_000),
            ),
        ];
        assert_eq!(shapes.collect::<Vec<_>>(), promised);
        let watch = workload_named("extra/watch-1000").unwrap().shape();
        assert_eq!(watch.watches_each(), 1_000);
        let listed = ["paced-write", "list-while-writing"].map(|name| {
            let shape = profile("extra").unwrap().workload(name).unwrap().shape();
            (shape.listers_beside(), shape.rate)
        });
        assert_eq!(listed, [(0, Some(1_000.0)), (1, Some(1_000.0))]);
    }

    /// Whatever etcd has no word for could not be compared with the same client.
    #[test]
    fn the_profile_of_etcd_holds_nothing_that_only_dengine_has() {
        let etcd = profile("etcd").unwrap();
        let (standard, extra) = (profile("standard").unwrap(), profile("extra").unwrap());
        for workload in etcd.workloads {
            let shape = workload.shape();
            assert_ne!(shape.consistency, Some(Lease), "{}", workload.name);
            assert_ne!(shape.workload, Workload::Seen, "{}", workload.name);
        }
        let same = |own: &str, of: &Profile, other: &str| {
            let mut own = etcd.workload(own).unwrap().shape();
            let other = of.workload(other).unwrap().shape();
            assert!(own.total < other.total, "{other:?}");
            own.total = other.total;
            assert_eq!(own, other);
        };
        same("write", standard, "write");
        same("linearizable-read", standard, "linearizable-read");
        same("serializable-read", standard, "eventual-read");
        same("compare-and-put", extra, "lease-renewal");
        same("watch-1000", extra, "watch-1000");
        same("paged-list", extra, "paged-list");
    }

    #[test]
    fn a_goal_is_held_against_a_workload_of_its_profile() {
        for profile in &PROFILES {
            for workload in profile.workloads {
                if let Some(P99Goal::Times(_, other)) = workload.p99_goal {
                    assert!(profile.workload(other).is_some(), "{}", workload.name);
                }
            }
        }
    }

    #[test]
    fn quick_is_standard_with_fewer_requests() {
        let [standard, quick] = ["standard", "quick"].map(|name| profile(name).unwrap().workloads);
        assert_eq!(standard.len(), quick.len());
        for (standard, quick) in standard.iter().zip(quick) {
            let same = NamedWorkload {
                total: standard.total,
                at_least_seconds: standard.at_least_seconds,
                ..*quick
            };
            assert_eq!(same, *standard);
            assert!(quick.total < standard.total);
        }
    }
}
