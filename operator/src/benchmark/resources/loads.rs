//! What a Job loads, so that two of them do not load the same at once: the addresses that its arguments name, each under the
//! one name that it has in all of Kubernetes. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;

use super::{Benchmark, job};

/// What the next Job of this benchmark loads.
pub fn of(benchmark: &Benchmark) -> BTreeSet<String> {
    let (_, endpoints) = job::endpoints(benchmark);
    let place = |endpoint: &String| place(endpoint, &benchmark.namespace);
    endpoints.iter().map(place).collect()
}

/// What this Job loads.
pub fn by(job: &Job) -> BTreeSet<String> {
    let namespace = job.namespace().unwrap_or_default();
    let template = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers = template.into_iter().flat_map(|spec| &spec.containers);
    let arguments = containers.flat_map(|container| container.args.iter().flatten());
    let endpoints = arguments.filter_map(|argument| argument.strip_prefix(job::ENDPOINTS));
    endpoints
        .map(|endpoint| place(endpoint, &namespace))
        .collect()
}

/// An address as seen from a pod in this namespace: `SERVICE.NAMESPACE:PORT`, also for a pod of a StatefulSet, whose others
/// serve the same data. What is no name of a Service stays as it is.
fn place(endpoint: &str, namespace: &str) -> String {
    let endpoint = endpoint.to_ascii_lowercase();
    let address = endpoint.rsplit("//").next().unwrap_or_default();
    let address = address.trim_end_matches('/');
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
        return address.to_owned();
    }
    let host = host.trim_end_matches('.');
    let (name, is_full) = within_cluster(host);
    let labels: Vec<&str> = name.split('.').collect();
    match (&labels[..], is_full) {
        ([service], _) => format!("{service}.{namespace}:{port}"),
        ([pod, service], false) if is_ordinal(pod) => format!("{service}.{namespace}:{port}"),
        ([pod, service, namespace], false) if is_pod_of(pod, service) => {
            format!("{service}.{namespace}:{port}")
        }
        ([_, service, namespace], true) => format!("{service}.{namespace}:{port}"),
        _ => format!("{name}:{port}"),
    }
}

/// A name without what all of Kubernetes' names may end with, and whether it did.
fn within_cluster(host: &str) -> (&str, bool) {
    let of_service = host
        .split_once(".svc")
        .filter(|(_, domain)| domain.is_empty() || domain.starts_with('.'));
    of_service.map_or((host, false), |(name, _)| (name, true))
}

/// Whether a StatefulSet of this Service would name a pod so, by how the two are usually called: without `svc` it may as well
/// be a machine in somebody's domain.
fn is_pod_of(pod: &str, service: &str) -> bool {
    let set = pod.rsplit_once('-').map(|(set, _)| set);
    is_ordinal(pod) && set.is_some_and(|set| service.starts_with(set))
}

/// Whether a StatefulSet would name a pod so.
fn is_ordinal(pod: &str) -> bool {
    let ordinal = pod.rsplit_once('-').map(|(_, ordinal)| ordinal);
    ordinal.is_some_and(|ordinal| ordinal.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use dengine_crds::benchmark::Leg;

    use super::*;
    use crate::benchmark::resources::tests::benchmark;

    #[test]
    fn one_place_has_one_name_wherever_it_is_spoken_of() {
        for same in [
            "etcd.infra:2379",
            "http://etcd.infra:2379",
            "Etcd.Infra.svc:2379",
            "etcd.infra.svc.cluster.local.:2379",
            "etcd-0.etcd.infra:2379",
            "etcd-0.etcd.infra.svc:2379",
            "etcd-2.etcd.infra.svc.cluster.local:2379",
        ] {
            assert_eq!(place(same, "test"), "etcd.infra:2379", "{same}");
        }
        for same in ["etcd:2379", "etcd-0.etcd:2379", "https://etcd-1.etcd:2379/"] {
            assert_eq!(place(same, "infra"), "etcd.infra:2379", "{same}");
        }
        for other in [
            "etcd.infra:2378",
            "10.0.0.1:2379",
            "[fd00::1]:2379",
            "ip-10-0-0-1.ec2.internal:2379",
            "etcd-1.example.com:2379",
            "etcd.svcs.example.com:2379",
        ] {
            assert_eq!(place(other, "test"), other);
        }
    }

    #[test]
    fn a_job_loads_what_its_benchmark_says_of_its_leg() {
        let mut both = benchmark(
            "{profile: quick, target: {clusterRef: {name: demo}},
              compareWith: {etcd: {endpoints: [etcd-0.etcd:2379, e:2379]}}}",
        );
        let places = |benchmark: &Benchmark| {
            let places = of(benchmark);
            assert_eq!(by(&job::build(benchmark)), places);
            places.into_iter().collect::<Vec<String>>()
        };
        assert_eq!(places(&both), ["demo-client.test:4100"]);
        both.leg = Leg::Rival;
        assert_eq!(places(&both), ["e.test:2379", "etcd.test:2379"]);
    }
}
