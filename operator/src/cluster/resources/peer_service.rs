//! The headless Service that gives every member its DNS name. It publishes members that are not
//! ready, since they can only become ready by finding each other. For the same reason clients reach
//! members through it that can still serve stale reads without a quorum.

use dengine_crds::names;
use dengine_protocol::ports;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{meta, selector};
use crate::cluster::validate::Cluster;

/// The Service `NAME-peer`.
pub(crate) fn build(cluster: &Cluster) -> Service {
    let port = |name: &str, port: u16| ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    Service {
        metadata: meta(cluster, names::cluster::peer_service(&cluster.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector(&cluster.name)),
            ports: Some(vec![
                port("client", ports::CLIENT),
                port("peer", ports::PEER),
                port("monitor", ports::MONITOR),
                port("admin", ports::ADMIN),
            ]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::validate::tests::cluster;

    #[test]
    fn members_find_each_other_before_they_are_ready() {
        let service = super::build(&cluster("demo"));
        let spec = service.spec.unwrap();
        assert_eq!(service.metadata.name.as_deref(), Some("demo-peer"));
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
        let ports = spec.ports.unwrap();
        assert!(ports.iter().any(|port| port.port == 4100), "stale reads");
    }
}
