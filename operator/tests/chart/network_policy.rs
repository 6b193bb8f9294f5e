//! The NetworkPolicy in docs/network-policy.md allows exactly the peers of the page's table.

use std::collections::{BTreeMap, BTreeSet};

use dengine_crds::names::labels;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::read;
use crate::rendered::{operator, rendered};
use crate::runbooks::{blocks, known};

const PAGE: &str = "docs/network-policy.md";
/// Name of the page's cluster.
const CLUSTER: &str = "demo";
/// Any peer may scrape: the port serves no data.
const FROM_ANYWHERE: &str = "Prometheus";

/// Peers and their ports.
type Ways = BTreeSet<(String, u16)>;

/// The rows of the table about members: peer, ports, target, purpose.
fn of_table(page: &str) -> Ways {
    let rows = page.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    let mut found = Ways::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [who, ports, reaches, _] = cells[..] else {
            panic!("four cells are expected: {row}")
        };
        if !reaches.starts_with("members") {
            continue;
        }
        let who = who.split(',').next().unwrap();
        let words = ports.split(|c: char| !c.is_ascii_digit());
        let ports = words.filter(|word| word.len() == 4);
        found.extend(ports.map(|port| (who.to_owned(), port.parse().unwrap())));
    }
    found
}

fn of_example(policy: &NetworkPolicy) -> Ways {
    let spec = policy.spec.as_ref().unwrap();
    let mut found = Ways::new();
    for rule in spec.ingress.as_ref().unwrap() {
        let who: Vec<String> = match &rule.from {
            Some(peers) => peers.iter().map(of_peer).collect(),
            None => vec![FROM_ANYWHERE.to_owned()],
        };
        for port in rule.ports.as_ref().unwrap() {
            let Some(IntOrString::Int(port)) = port.port else {
                panic!("a number is expected: {port:?}")
            };
            let port = u16::try_from(port).unwrap();
            found.extend(who.iter().map(|who| (who.clone(), port)));
        }
    }
    found
}

/// The peer that has these labels.
fn of_peer(peer: &NetworkPolicyPeer) -> String {
    let pods = labels_of(peer.pod_selector.as_ref());
    let has = |label: &str, value: &str| pods.get(label).is_some_and(|it| it == value);
    let who = if has(labels::CLUSTER, CLUSTER) {
        "members"
    } else if has(labels::COMPONENT, labels::COMPONENT_BENCHMARK) {
        "benchmark Jobs"
    } else if has("uses-demo", "true") {
        "clients"
    } else if has("administers-demo", "true") {
        "people"
    } else {
        assert_is_operator(peer, &pods);
        return "operator".to_owned();
    };
    assert_eq!(peer.namespace_selector, None, "{who}");
    who.to_owned()
}

/// Its pods have these labels, and run in the namespace where README and demo install it.
fn assert_is_operator(peer: &NetworkPolicyPeer, pods: &BTreeMap<String, String>) {
    let (selector, _) = operator(&rendered(&[]));
    let labels = labels_of(Some(&selector));
    let fits = |(label, value): (&String, &String)| labels.get(label) == Some(value);
    assert!(!pods.is_empty() && pods.iter().all(fits), "{pods:?}");
    let namespaces = labels_of(peer.namespace_selector.as_ref());
    let namespace = namespaces.get("kubernetes.io/metadata.name").unwrap();
    assert!(read("README.md").contains(&format!("--namespace {namespace}")));
}

fn labels_of(selector: Option<&LabelSelector>) -> BTreeMap<String, String> {
    let labels = selector.and_then(|selector| selector.match_labels.clone());
    labels.unwrap_or_default()
}

/// It once had no rule for the operator, and blocked clients within members.
#[test]
fn the_example_allows_the_peers_of_the_table() {
    let page = read(PAGE);
    let [policy] = &blocks(&page, "yaml")[..] else {
        panic!("one policy is expected")
    };
    known::<NetworkPolicy>(serde_saphyr::from_str(policy).unwrap());
    let policy: NetworkPolicy = serde_saphyr::from_str(policy).unwrap();
    let pods = labels_of(policy.spec.as_ref().unwrap().pod_selector.as_ref());
    assert_eq!(pods.get(labels::CLUSTER).unwrap(), CLUSTER);
    let table = of_table(&page);
    assert!(table.len() >= 9, "{table:?}");
    assert_eq!(of_example(&policy), table);
}
