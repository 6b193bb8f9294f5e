//! Which clients of a load one of several processes is. Pure.
//!
//! Clients go round the processes, and so do connections. A client sends what it would send if all
//! of them were in one process, so together they send exactly the requests of one, at its rate, or
//! for as long as it.

use dengine_bench_model::pods;
use dengine_bench_model::results::Shape;

/// One of the processes that send a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    index: u64,
    of: u64,
}

impl Part {
    /// Of a load that one process sends.
    pub const WHOLE: Part = Part { index: 0, of: 1 };

    /// The part of the pod with this index; `None` if the workload comes from others alone.
    #[must_use]
    pub fn of_pod(index: u32, pods: u32, shape: &Shape) -> Option<Self> {
        let loading = pods::loading(pods, shape);
        (index < loading).then_some(Part {
            index: index.into(),
            of: loading.into(),
        })
    }

    /// Whether it has the client, or connection, of this index.
    #[must_use]
    pub fn has(self, index: u64) -> bool {
        index % self.of == self.index
    }

    /// The indexes of its clients, of so many.
    pub fn of(self, clients: u64) -> impl Iterator<Item = u64> {
        (self.index..clients).step_by(self.of as usize)
    }

    /// How many it has of so many clients, or connections.
    #[must_use]
    pub fn share(self, number: u64) -> u64 {
        number.saturating_sub(self.index).div_ceil(self.of)
    }

    /// How many of so many requests its clients send.
    #[must_use]
    pub fn requests(self, clients: u64, total: u64) -> u64 {
        self.share(clients) * (total / clients) + self.share(total % clients)
    }

    /// Endpoints in the order of its connections, so that those of all parts together are spread
    /// over them as one process would.
    #[must_use]
    pub fn endpoints(self, all: &[String]) -> Vec<String> {
        let endpoint = |own: usize| {
            let connection = self.index as usize + own * self.of as usize;
            all[connection % all.len()].clone()
        };
        (0..all.len()).map(endpoint).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dengine_bench_model::profiles::{NamedWorkload, PROFILES};
    use proptest::prelude::*;

    use super::super::numbers;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn parts_send_each_request_of_the_whole_once(
            of in 1..9_u64,
            clients in 1..60_u64,
            total in 0..2_000_u64,
        ) {
            let (mut sent, mut shares) = (Vec::new(), 0);
            for index in 0..of {
                let part = Part { index, of };
                let own: Vec<u64> = part.of(clients).collect();
                prop_assert!(own.iter().all(|client| part.has(*client)));
                prop_assert_eq!(part.share(clients), own.len() as u64);
                let of_clients = own.iter().flat_map(|client| numbers(*client, clients, total));
                let requests: Vec<u64> = of_clients.collect();
                prop_assert_eq!(part.requests(clients, total), requests.len() as u64);
                shares += part.share(clients);
                sent.extend(requests);
            }
            sent.sort_unstable();
            prop_assert_eq!(shares, clients);
            prop_assert_eq!(sent, (0..total).collect::<Vec<_>>());
        }

        #[test]
        fn connections_are_spread_over_the_endpoints_as_by_one_process(
            of in 1..9_u64,
            connections in 1..60_u64,
            endpoints in 1..7_usize,
        ) {
            let all: Vec<String> = (0..endpoints).map(|it| it.to_string()).collect();
            let count = |part: Part, counts: &mut BTreeMap<String, u64>| {
                let own = part.endpoints(&all);
                for connection in 0..part.share(connections) as usize {
                    *counts.entry(own[connection % own.len()].clone()).or_default() += 1;
                }
            };
            let (mut alone, mut together) = (BTreeMap::new(), BTreeMap::new());
            count(Part::WHOLE, &mut alone);
            (0..of).for_each(|index| count(Part { index, of }, &mut together));
            prop_assert_eq!(together, alone);
        }
    }

    #[test]
    fn no_pod_that_loads_has_a_connection_without_a_client() {
        let workloads = PROFILES.iter().flat_map(|profile| profile.workloads);
        for shape in workloads.map(NamedWorkload::shape) {
            for pods in 1..=pods::MAX {
                let parts = (0..pods).filter_map(|index| Part::of_pod(index, pods, &shape));
                let parts: Vec<Part> = parts.collect();
                assert_eq!(parts.len() as u32, pods::loading(pods, &shape));
                for part in parts {
                    let connections = part.share(shape.connections.into());
                    let carried =
                        part.share(shape.clients.into()) * u64::from(shape.watches_each());
                    assert!((1..=carried).contains(&connections), "{shape:?} {part:?}");
                }
            }
        }
        assert_eq!(
            Part::of_pod(0, 1, &PROFILES[0].workloads[1].shape()),
            Some(Part::WHOLE)
        );
    }
}
