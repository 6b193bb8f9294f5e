//! Helm's output for the chart.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use clap::Parser;
use dengine_local_kubernetes::{programs, shell};
use dengine_operator::options::Options;
use dengine_operator::pod::User;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, PodSecurityContext, PodSpec, Probe};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::workspace;

/// If Helm is not installed, it is built once, as for the tests on Kubernetes.
static HELM: LazyLock<PathBuf> =
    LazyLock::new(|| shell::find("helm").unwrap_or_else(|| programs::helm().unwrap()));

/// The objects of a release, without the CRDs.
pub(crate) fn rendered(flags: &[&str]) -> Vec<Value> {
    let mut helm = Command::new(&*HELM);
    helm.args(["template", "demo"])
        .arg(workspace().join("charts/dengine-operator"));
    helm.args(["--kube-version=1.34.0", "--set=crds.install=false"])
        .args(flags);
    let text = shell::run(&mut helm).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Objects of a kind.
fn of_kind<K: k8s_openapi::Resource + DeserializeOwned>(objects: &[Value]) -> Vec<K> {
    let found = objects.iter().filter(|object| object["kind"] == K::KIND);
    found
        .map(|object| serde_json::from_value(object.clone()).unwrap())
        .collect()
}

/// The operator's pods: their labels and spec.
pub(crate) fn operator(objects: &[Value]) -> (LabelSelector, PodSpec) {
    let deployment = of_kind::<Deployment>(objects).remove(0).spec.unwrap();
    (deployment.selector, deployment.template.spec.unwrap())
}

/// The operator's options, as it parses them.
fn options(pod: &PodSpec) -> Options {
    let args = pod.containers[0].args.clone().unwrap();
    let program = "dengine-operator".to_owned();
    Options::try_parse_from([program].into_iter().chain(args)).unwrap()
}

#[test]
fn two_operators_spread_and_a_drain_evicts_one() {
    let objects = rendered(&["--set=replicas=2"]);
    let (selector, pod) = operator(&objects);
    let [budget] = &of_kind::<PodDisruptionBudget>(&objects)[..] else {
        panic!("one budget is expected: {objects:#?}")
    };
    let budget = budget.spec.as_ref().unwrap();
    assert_eq!(budget.max_unavailable, Some(IntOrString::Int(1)));
    assert_eq!(budget.min_available, None);
    assert_eq!(budget.selector.as_ref(), Some(&selector));
    let [spread] = &pod.topology_spread_constraints.unwrap()[..] else {
        panic!("one constraint is expected")
    };
    assert_eq!(spread.max_skew, 1);
    assert_eq!(spread.topology_key, "kubernetes.io/hostname");
    // On a single node both replicas still run.
    assert_eq!(spread.when_unsatisfiable, "ScheduleAnyway");
    assert_eq!(spread.label_selector.as_ref(), Some(&selector));
}

#[test]
fn a_single_operator_does_not_block_a_drain() {
    let objects = rendered(&[]);
    assert!(of_kind::<PodDisruptionBudget>(&objects).is_empty());
    assert_eq!(operator(&objects).1.topology_spread_constraints, None);
}

/// `[::]` is every address of both families; the kubelet probes the pod's first address, of either
/// family.
#[test]
fn the_operator_is_probed_at_every_address() {
    let (_, pod) = operator(&rendered(&[]));
    let listen = options(&pod).listen;
    assert!(listen.is_ipv6() && listen.ip().is_unspecified(), "{listen}");
    let container = &pod.containers[0];
    let ports = container.ports.as_ref().unwrap();
    let named = |name: &str| ports.iter().find(|port| port.name.as_deref() == Some(name));
    let probed = |probe: &Option<Probe>, path: &str| {
        let get = probe.clone().unwrap().http_get.unwrap();
        assert_eq!((get.host, get.path.as_deref()), (None, Some(path)));
        let IntOrString::String(name) = get.port else {
            panic!("a port by its name is expected")
        };
        named(&name).unwrap().container_port
    };
    let port = i32::from(listen.port());
    assert_eq!(probed(&container.liveness_probe, "/healthz"), port);
    assert_eq!(probed(&container.readiness_probe, "/readyz"), port);
}

/// `helm upgrade --reuse-values` lacks values that were added after the release: they have their
/// defaults.
#[test]
fn a_newer_value_may_be_missing() {
    let two = "--set=replicas=2";
    let usual = rendered(&[two]);
    assert!(!of_kind::<PodDisruptionBudget>(&usual).is_empty());
    for value in [
        "podUser",
        "podDisruptionBudget",
        "topologySpreadConstraints",
        "watchNamespaces",
        "monitoring",
        "networkPolicy",
    ] {
        let without = rendered(&[two, &format!("--set={value}=null")]);
        assert_eq!(without, usual, "{value}");
    }
}

#[test]
fn monitoring_objects_have_their_labels() {
    let objects = rendered(&[
        "--set=monitoring.podMonitor.enabled=true",
        "--set=monitoring.prometheusRule.enabled=true",
        "--set=monitoring.dashboard.enabled=true",
        "--set=monitoring.labels.team=ours",
    ]);
    let kinds = ["PodMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"];
    for kind in kinds {
        let mut of_kind = objects.iter().filter(|object| object["kind"] == kind);
        let number = kinds.iter().filter(|one| **one == kind).count();
        assert_eq!(of_kind.clone().count(), number, "{kind}");
        assert!(of_kind.all(|object| object["metadata"]["labels"]["team"] == "ours"));
    }
    let dashboard = objects.iter().find(|object| object["kind"] == "ConfigMap");
    assert_eq!(
        dashboard.unwrap()["metadata"]["labels"]["grafana_dashboard"],
        "1"
    );
}

/// Another release in the same Prometheus, whose operator holds its own lease, must not silence the
/// alert.
#[test]
fn the_alert_for_an_absent_operator_is_per_release() {
    let objects = rendered(&[
        "--namespace=its-own",
        "--set=monitoring.prometheusRule.enabled=true",
    ]);
    let deployment = of_kind::<Deployment>(&objects).remove(0).metadata;
    let rule = |object: &&Value| object["kind"] == "PrometheusRule";
    let rules = objects.iter().find(rule).unwrap();
    let groups = rules["spec"]["groups"].as_array().unwrap().iter();
    let mut alerts = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let away = alerts
        .find(|rule| rule["alert"] == "DEngineOperatorAway")
        .unwrap();
    let expression = away["expr"].as_str().unwrap();
    let name = deployment.name.unwrap();
    for matcher in ["namespace=\"its-own\"", &format!("pod=~\"{name}-[^-]+")] {
        assert!(expression.contains(matcher), "{expression}");
    }
    assert!(!rules.to_string().contains("RELEASE_NAMESPACE"));
    assert!(!rules.to_string().contains("DEPLOYMENT_NAME"));
}

/// OpenShift's security context constraints set the user of pods, and refuse pods that name one.
#[test]
fn on_openshift_no_pod_names_its_user() {
    let openshift = "--api-versions=security.openshift.io/v1";
    for (flags, user, id) in [
        (&[][..], User::Fixed, Some(65532)),
        (&[openshift], User::Assigned, None),
        (&["--set=podUser=assigned"], User::Assigned, None),
        (&["--set=podUser=null"], User::Fixed, Some(65532)),
        (&[openshift, "--set=podUser=null"], User::Assigned, None),
        (
            &[openshift, "--set=podUser=fixed"],
            User::Fixed,
            Some(65532),
        ),
    ] {
        let objects = rendered(flags);
        let (_, operator) = operator(&objects);
        assert_eq!(options(&operator).pod_user, user, "{flags:?}");
        let test = of_kind::<Pod>(&objects).remove(0).spec.unwrap();
        for pod in [operator, test] {
            let PodSecurityContext {
                run_as_non_root,
                run_as_user,
                run_as_group,
                fs_group,
                ..
            } = pod.security_context.unwrap();
            assert_eq!(run_as_non_root, Some(true), "{flags:?}");
            assert_eq!((run_as_user, run_as_group), (id, id), "{flags:?}");
            assert_eq!(fs_group, None, "it has no volume");
        }
    }
}
