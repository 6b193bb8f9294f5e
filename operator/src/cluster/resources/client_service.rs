//! The Service for clients: it selects ready pods only.

use dengine_crds::names;
use dengine_protocol::ports;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{meta, selector};
use crate::cluster::validate::Cluster;

/// The Service `NAME-client`.
pub(crate) fn build(cluster: &Cluster) -> Service {
    Service {
        metadata: meta(cluster, names::cluster::client_service(&cluster.name)),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            selector: Some(selector(&cluster.name)),
            ports: Some(vec![ServicePort {
                name: Some("client".to_owned()),
                port: i32::from(ports::CLIENT),
                protocol: Some("TCP".to_owned()),
                app_protocol: Some("kubernetes.io/h2c".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::validate::tests::cluster;

    #[test]
    fn clients_reach_ready_members_only() {
        let service = super::build(&cluster("demo"));
        let spec = service.spec.unwrap();
        assert_eq!(service.metadata.name.as_deref(), Some("demo-client"));
        assert_eq!(spec.publish_not_ready_addresses, None);
        assert_eq!(spec.ports.unwrap()[0].port, 4100);
    }
}
