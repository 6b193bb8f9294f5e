//! The Service for clients: it selects ready pods only.

use dengine_crds::names;
use dengine_protocol::ports;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::stateful_set::serves_etcd;
use super::{meta, selector};
use crate::cluster::validate::Cluster;

/// The Service `NAME-client`.
pub(crate) fn build(cluster: &Cluster) -> Service {
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        app_protocol: Some("kubernetes.io/h2c".to_owned()),
        ..ServicePort::default()
    };
    let etcd = serves_etcd(&cluster.spec).then(|| port("etcd", ports::ETCD));
    let ports = std::iter::once(port("client", ports::CLIENT)).chain(etcd);
    Service {
        metadata: meta(cluster, names::cluster::client_service(&cluster.name)),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(selector(&cluster.name)),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::validate::tests::{cluster, cluster_with};

    #[test]
    fn clients_reach_ready_members_only() {
        let service = super::build(&cluster("demo"));
        let spec = service.spec.unwrap();
        assert_eq!(service.metadata.name.as_deref(), Some("demo-client"));
        assert_eq!(spec.publish_not_ready_addresses, None);
        assert_eq!(spec.ports.unwrap()[0].port, 4100);
    }

    #[test]
    fn clients_of_etcd_find_the_port_that_they_expect() {
        let cluster = cluster_with("demo", "{etcd: {enabled: true}}");
        let ports = super::build(&cluster).spec.unwrap().ports.unwrap();
        let ports: Vec<_> = ports
            .iter()
            .map(|it| (it.name.as_deref(), it.port))
            .collect();
        assert_eq!(ports, [(Some("client"), 4100), (Some("etcd"), 2379)]);
    }
}
