//! The headless Service under which the pods of a Job find the first of them. It publishes pods
//! that are not ready: it is by meeting there that they become so.

use dengine_bench_model::pods;
use dengine_crds::names;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use super::{Benchmark, labels, meta};

/// The Service `NAME-pods`.
pub(crate) fn build(benchmark: &Benchmark) -> Service {
    Service {
        metadata: meta(benchmark, names::benchmark::pods_service(&benchmark.name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(labels(&benchmark.name)),
            ports: Some(vec![ServicePort {
                name: Some("pods".to_owned()),
                port: i32::from(pods::PORT),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

#[cfg(test)]
mod tests {
    use crate::benchmark::resources::job;
    use crate::benchmark::resources::tests::benchmark;

    #[test]
    fn it_selects_the_pods_of_the_job_and_names_them_at_once() {
        let several = benchmark("{profile: quick, pods: 3, target: {clusterRef: {name: demo}}}");
        let service = super::build(&several);
        let spec = service.spec.unwrap();
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
        let template = job::build(&several).spec.unwrap().template;
        assert_eq!(template.metadata.unwrap().labels, spec.selector);
        assert_eq!(template.spec.unwrap().subdomain, service.metadata.name);
    }
}
