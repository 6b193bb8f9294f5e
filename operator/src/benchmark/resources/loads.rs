//! Which targets a Job loads, so that two Jobs do not load the same at once: the addresses in its
//! arguments, as names that are valid in the whole Kubernetes cluster. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dengine_crds::names::cluster;
use dengine_protocol::ports;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;

use super::{Benchmark, job};

/// Targets of the next Job of this benchmark.
pub(crate) fn of(benchmark: &Benchmark) -> BTreeSet<String> {
    let (_, endpoints) = job::endpoints(benchmark);
    let places = |endpoint: &String| places(endpoint, &benchmark.namespace);
    endpoints.iter().flat_map(places).collect()
}

/// Targets of this Job.
pub(crate) fn by(job: &Job) -> BTreeSet<String> {
    let namespace = job.namespace().unwrap_or_default();
    let template = job
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let containers = template.into_iter().flat_map(|spec| &spec.containers);
    let arguments = containers.flat_map(|container| container.args.iter().flatten());
    let endpoints = arguments.filter_map(|argument| argument.strip_prefix(job::ENDPOINTS));
    endpoints
        .flat_map(|endpoint| places(endpoint, &namespace))
        .collect()
}

/// The names of an entry of a list of addresses, which may be such a list itself: the tool splits
/// it.
fn places(endpoints: &str, namespace: &str) -> Vec<String> {
    let endpoints = endpoints.split(',');
    endpoints
        .flat_map(|endpoint| places_of_one(endpoint, namespace))
        .collect()
}

/// The names of an address as seen from a pod in this namespace. For a pod of a StatefulSet these
/// are `POD.SERVICE.NAMESPACE:PORT` and, since the other pods of its Service serve the same data,
/// `SERVICE.NAMESPACE:PORT`. A name that is not a Service's stays as it is.
fn places_of_one(endpoint: &str, namespace: &str) -> Vec<String> {
    let endpoint = endpoint.trim().to_ascii_lowercase();
    let address = endpoint.rsplit("//").next().unwrap_or_default();
    let address = address.rsplit('@').next().unwrap_or_default();
    let address = address.trim_end_matches('/');
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    if host.starts_with('[') || host.parse::<IpAddr>().is_ok() {
        return vec![address.to_owned()];
    }
    let names = names(host.trim_end_matches('.'), namespace);
    names
        .iter()
        .flat_map(|name| with_port(name, port))
        .collect()
}

/// A cluster's Service for clients leads to the same keys at etcd's port as at the cluster's own. A
/// Service of another system may be called so, too: it has nothing at that other port.
fn with_port(name: &str, port: &str) -> Vec<String> {
    let service = name.split('.').next().unwrap_or_default();
    let of_clients = service.ends_with(&cluster::client_service(""));
    let own = (of_clients && port == ports::ETCD.to_string()).then_some(ports::CLIENT);
    let given = format!("{name}:{port}");
    let own = own.map(|port| format!("{name}:{port}"));
    std::iter::once(given).chain(own).collect()
}

fn names(host: &str, namespace: &str) -> Vec<String> {
    let (name, is_full) = within_cluster(host);
    let labels: Vec<&str> = name.split('.').collect();
    let pod = |name: &str, of: &str, namespace: &str| {
        let service = format!("{of}.{namespace}");
        vec![format!("{name}.{service}"), service]
    };
    match labels[..] {
        // A name without its namespace has no `svc` either, so the namespace is called `svc`.
        [service] if is_full => vec![format!("{service}.svc")],
        [service] => vec![format!("{service}.{namespace}")],
        [name, of] if !is_full && is_ordinal(name) => pod(name, of, namespace),
        // Without `svc` it may as well be a host of another domain, beside others that serve
        // something else.
        [name, of, namespace] if is_full || is_pod_of(name, of) => pod(name, of, namespace),
        _ => vec![name.to_owned()],
    }
}

/// A name without the suffix of Kubernetes' names, and whether it had one.
fn within_cluster(host: &str) -> (&str, bool) {
    // The last one: names of Services and namespaces may begin with `svc`.
    let mut ends = host.rmatch_indices(".svc");
    let label = |at: usize| host[at + ".svc".len()..].starts_with('.') || host.ends_with(".svc");
    let of_service = ends.find(|(at, _)| label(*at));
    of_service.map_or((host, false), |(at, _)| (&host[..at], true))
}

/// Whether a StatefulSet of this Service would name a pod so, by the usual naming.
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
    fn a_service_has_one_name_in_all_namespaces() {
        let etcd = "etcd.infra:2379".to_owned();
        for same in [
            "etcd.infra:2379",
            "http://etcd.infra:2379",
            "Etcd.Infra.svc:2379",
            "etcd.infra.svc.cluster.local.:2379",
            "etcd-0.etcd.infra:2379",
            "etcd-0.etcd.infra.svc:2379",
            "etcd-2.etcd.infra.svc.cluster.local:2379",
        ] {
            assert!(places(same, "test").contains(&etcd), "{same}");
        }
        for same in ["etcd:2379", "etcd-0.etcd:2379", "https://etcd-1.etcd:2379/"] {
            assert!(places(same, "infra").contains(&etcd), "{same}");
        }
        for other in [
            "etcd.infra:2378",
            "10.0.0.1:2379",
            "[fd00::1]:2379",
            "ip-10-0-0-1.ec2.internal:2379",
            "etcd-1.example.com:2379",
            "etcd.svcs.example.com:2379",
        ] {
            assert_eq!(places(other, "test"), [other]);
        }
    }

    #[test]
    fn a_service_and_a_namespace_may_have_svc_in_their_names() {
        for (same, service) in [
            ("etcd-0.etcd.svc-infra.svc:2379", "etcd.svc-infra:2379"),
            (
                "etcd-1.etcd.svc-infra.svc.cluster.local:2379",
                "etcd.svc-infra:2379",
            ),
            ("etcd-1.svc-etcd.infra.svc:2379", "svc-etcd.infra:2379"),
            ("etcd-1.svc.infra.svc:2379", "svc.infra:2379"),
            ("etcd.svc:2379", "etcd.svc:2379"),
            ("etcd.svc.svc:2379", "etcd.svc:2379"),
        ] {
            assert!(places(same, "test").contains(&service.to_owned()), "{same}");
        }
    }

    /// As pasted from `ETCDCTL_ENDPOINTS`.
    #[test]
    fn an_entry_may_be_a_list_and_name_a_user() {
        let both = places("http://me@etcd-0.etcd:2379, etcd-1.etcd:2379", "test");
        let each = ["etcd-0.etcd:2379", "etcd-1.etcd:2379"].map(|it| places(it, "test"));
        assert_eq!(both, each.concat());
    }

    /// Also where its names do not show that it is one.
    #[test]
    fn a_pod_is_recognized_in_every_form_of_its_address() {
        let pod = "db-0.headless.infra:2379".to_owned();
        for (same, namespace) in [
            ("db-0.headless.infra:2379", "test"),
            ("http://db-0.headless.infra:2379/", "infra"),
            ("db-0.headless:2379", "infra"),
            ("DB-0.headless.infra.svc:2379", "test"),
            ("db-0.headless.infra.svc.cluster.local.:2379", "test"),
        ] {
            assert!(places(same, namespace).contains(&pod), "{same}");
        }
        for other in [
            "db-0.headless.infra:2378",
            "db-0.headless:2379",
            "db-1.headless.infra:2379",
            "db-1.headless.infra.svc:2379",
        ] {
            assert!(!places(other, "test").contains(&pod), "{other}");
        }
        let other = places("db-1.headless.infra:2379", "test");
        assert_eq!(
            other.len(),
            1,
            "perhaps a machine, which serves another etcd"
        );
    }

    /// Or two loads, one in either API, would spoil each other.
    #[test]
    fn a_cluster_is_one_target_at_either_of_its_ports() {
        let target = "target: {clusterRef: {name: demo}}";
        let own = of(&benchmark(&format!("{{workload: put, {target}}}")));
        let in_etcds_api = of(&benchmark(&format!(
            "{{workload: put, wire: etcd, {target}}}"
        )));
        assert!(!own.is_disjoint(&in_etcds_api), "{own:?} {in_etcds_api:?}");
        let as_an_etcd = places("demo-client.test.svc:2379", "infra");
        assert!(as_an_etcd.iter().any(|place| own.contains(place)));
        assert_eq!(places("etcd.test.svc:2379", "infra"), ["etcd.test:2379"]);
    }

    #[test]
    fn a_job_loads_the_target_of_its_leg() {
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
        let etcd = ["e.test:2379", "etcd-0.etcd.test:2379", "etcd.test:2379"];
        assert_eq!(places(&both), etcd);
    }
}
