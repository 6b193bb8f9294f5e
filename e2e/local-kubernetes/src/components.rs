//! What runs on the node: each program with its arguments, its configuration files, and what must
//! answer before it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Result;

use crate::layout::{
    API_PORT, DNS_ADDRESS, Layout, NODE_ADDRESS, NODE_NAME, POD_RANGE, SERVICE_RANGE, WHOLE_RANGE,
};
use crate::programs::Programs;
use crate::settings::Settings;
use crate::{shell, store};

/// A program that the node runs: always, or until it has done its work.
#[derive(Debug, Clone)]
pub(crate) struct Component {
    /// Its name, and that of its log file.
    pub(crate) name: &'static str,
    /// What to run.
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// What has to be there first.
    pub(crate) needs: Needs,
    /// The file that says that it has ended well, after which it is not started again; `None` if it
    /// never does.
    pub(crate) done: Option<PathBuf>,
}

impl Component {
    /// One that runs always.
    pub(crate) fn new(
        name: &'static str,
        program: PathBuf,
        needs: Needs,
        arguments: Vec<String>,
    ) -> Self {
        Self {
            name,
            program,
            arguments,
            needs,
            done: None,
        }
    }

    /// Runs only until it has ended well, which this file then says.
    pub(crate) fn once(self, done: PathBuf) -> Self {
        Self {
            done: Some(done),
            ..self
        }
    }
}

/// What has to answer before a program can do its work.
#[derive(Debug, Clone)]
pub(crate) enum Needs {
    Nothing,
    /// Somebody listens there.
    Tcp(SocketAddr),
    /// The file or socket is there.
    File(PathBuf),
}

/// Writes the configuration files that [`all`] names.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write_configuration(layout: &Layout) -> Result<()> {
    for folder in [
        "log",
        "pids",
        "kubelet",
        "cni/net.d",
        "containerd",
        "pod-logs",
        "volumes",
    ] {
        fs_err::create_dir_all(layout.join(folder))?;
    }
    fs_err::write(layout.join("cni/net.d/10-pods.conflist"), cni(layout))?;
    fs_err::write(layout.join("containerd.toml"), containerd(layout))?;
    fs_err::write(layout.join("kubelet.yaml"), kubelet(layout))?;
    Ok(())
}

/// Every program of the node, in the order in which they are started.
#[must_use]
pub(crate) fn all(
    layout: &Layout,
    settings: &Settings,
    programs: &Programs,
    own_program: PathBuf,
) -> Vec<Component> {
    let api_server = || {
        Needs::Tcp(SocketAddr::new(
            NODE_ADDRESS.parse().expect("a constant address"),
            API_PORT,
        ))
    };
    let built =
        |name, needs, arguments| Component::new(name, programs.path(name), needs, arguments);
    let containerd = shell::find("containerd").unwrap_or_else(|| "containerd".into());
    let containerd_config = format!("--config={}", layout.join("containerd.toml").display());
    let mut scheduler_arguments = vec![
        kubeconfig(layout, "scheduler"),
        "--leader-elect=false".into(),
    ];
    scheduler_arguments.extend(client_limits(settings));
    let provisioner_arguments = vec![
        "provisioner".into(),
        format!("--state={}", layout.root().display()),
    ];
    let mut all = store::components(&settings.store, layout, programs);
    all.extend([
        built(
            "kube-apiserver",
            store::ready(&settings.store, layout),
            api_server_arguments(layout, settings),
        ),
        Component::new(
            "containerd",
            containerd,
            Needs::Nothing,
            vec![containerd_config],
        ),
        built(
            "kube-controller-manager",
            api_server(),
            controller_manager_arguments(layout, settings),
        ),
        built("kube-scheduler", api_server(), scheduler_arguments),
        built(
            "kubelet",
            Needs::File(layout.containerd_socket()),
            kubelet_arguments(layout),
        ),
        built("kube-proxy", api_server(), proxy_arguments(layout)),
        Component::new(
            "provisioner",
            own_program,
            api_server(),
            provisioner_arguments,
        ),
    ]);
    all
}

fn kubeconfig(layout: &Layout, who: &str) -> String {
    format!(
        "--kubeconfig={}",
        layout.pki().join(format!("{who}.kubeconfig")).display()
    )
}

fn api_server_arguments(layout: &Layout, settings: &Settings) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", layout.pki().join(name).display());
    let event_ttl = settings.event_ttl_seconds;
    let mut arguments = vec![
        format!("--etcd-servers={}", store::servers(&settings.store)),
        format!("--bind-address={NODE_ADDRESS}"),
        format!("--advertise-address={NODE_ADDRESS}"),
        format!("--secure-port={API_PORT}"),
        format!("--service-cluster-ip-range={SERVICE_RANGE}"),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction,PodSecurity".into(),
        "--kubelet-preferred-address-types=InternalIP".into(),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
        "--profiling=false".into(),
        file("client-ca-file", "ca.crt"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        file("kubelet-client-certificate", "apiserver-kubelet-client.crt"),
        file("kubelet-client-key", "apiserver-kubelet-client.key"),
        file("service-account-key-file", "sa.pub"),
        file("service-account-signing-key-file", "sa.key"),
    ];
    arguments.extend(event_ttl.map(|seconds| format!("--event-ttl={seconds}s")));
    if settings.raised_limits {
        arguments.extend([
            "--max-requests-inflight=3000".into(),
            "--max-mutating-requests-inflight=1000".into(),
        ]);
    }
    arguments
}

/// What a controller may ask of the API server: by default as little as 20 requests a second, so
/// that it would be these limits that are measured.
fn client_limits(settings: &Settings) -> Vec<String> {
    if settings.raised_limits {
        vec!["--kube-api-qps=5000".into(), "--kube-api-burst=5000".into()]
    } else {
        Vec::new()
    }
}

fn controller_manager_arguments(layout: &Layout, settings: &Settings) -> Vec<String> {
    let mut arguments = vec![
        kubeconfig(layout, "controller-manager"),
        "--leader-elect=false".into(),
        "--use-service-account-credentials".into(),
        format!(
            "--service-account-private-key-file={}",
            layout.pki().join("sa.key").display()
        ),
        format!("--root-ca-file={}", layout.pki().join("ca.crt").display()),
    ];
    arguments.extend(client_limits(settings));
    arguments
}

fn kubelet_arguments(layout: &Layout) -> Vec<String> {
    vec![
        kubeconfig(layout, "kubelet"),
        format!("--config={}", layout.join("kubelet.yaml").display()),
        format!("--root-dir={}", layout.join("kubelet").display()),
        format!("--hostname-override={NODE_NAME}"),
        format!("--node-ip={NODE_ADDRESS}"),
    ]
}

fn proxy_arguments(layout: &Layout) -> Vec<String> {
    vec![
        kubeconfig(layout, "proxy"),
        "--proxy-mode=iptables".into(),
        format!("--cluster-cidr={POD_RANGE}"),
        format!("--hostname-override={NODE_NAME}"),
        // A Service's answer from a pod on the same bridge must come back the way the question
        // went.
        "--masquerade-all".into(),
        // The machine's connection tracking is not ours to set.
        "--conntrack-max-per-core=0".into(),
        "--conntrack-tcp-timeout-established=0".into(),
        "--conntrack-tcp-timeout-close-wait=0".into(),
    ]
}

fn cni(layout: &Layout) -> String {
    // Only the cluster's own range is routed: a pod has no way off the machine.
    format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {{"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
   "ipam": {{"type": "host-local", "dataDir": "{}", "ranges": [[{{"subnet": "{POD_RANGE}"}}]],
            "routes": [{{"dst": "{WHOLE_RANGE}"}}]}}}}]}}
"#,
        layout.join("cni/addresses").display()
    )
}

fn containerd(layout: &Layout) -> String {
    let at = |name: &str| layout.join(name).display().to_string();
    format!(
        r#"version = 2
root = "{}"
state = "{}"
[grpc]
  address = "{}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:dev"
  # A root without CAP_SYS_RESOURCE cannot start sandboxes otherwise.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#,
        at("containerd/root"),
        at("containerd/state"),
        at("containerd.sock"),
        at("cni/net.d"),
    )
}

fn kubelet(layout: &Layout) -> String {
    let at = |name: &str| layout.join(name).display().to_string();
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {NODE_ADDRESS}
authentication: {{anonymous: {{enabled: false}}, webhook: {{enabled: true}}, x509: {{clientCAFile: "{ca}"}}}}
authorization: {{mode: Webhook}}
tlsCertFile: "{certificate}"
tlsPrivateKeyFile: "{key}"
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: "unix://{socket}"
podLogsDir: "{logs}"
clusterDNS: ["{DNS_ADDRESS}"]
clusterDomain: cluster.local
resolvConf: ""
# A full disk must not throw away images that no registry can give back.
imageGCHighThresholdPercent: 100
# Amounts, not shares: one percent of a large disk is more than all of this needs.
evictionHard: {{memory.available: "100Mi", nodefs.available: "200Mi", imagefs.available: "200Mi"}}
# Tests wait for pods: be quick rather than frugal.
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
registryPullQPS: 0
eventRecordQPS: 0
"#,
        ca = at("pki/ca.crt"),
        certificate = at("pki/kubelet.crt"),
        key = at("pki/kubelet.key"),
        socket = at("containerd.sock"),
        logs = at("pod-logs"),
    )
}
