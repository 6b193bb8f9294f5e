//! The cluster's own certificate authority: every program has its own name, and nobody skips
//! verification.

use std::path::Path;

use anyhow::Result;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use crate::layout::{API_PORT, API_SERVICE_ADDRESS, Layout, NODE_ADDRESS, NODE_NAME};
use crate::private::write_private;

/// Who a certificate is for: file name, user, group, and the names under which it serves.
struct Subject {
    file: &'static str,
    user: &'static str,
    group: Option<&'static str>,
    serves: &'static [&'static str],
    /// Whether it gets a kubeconfig of its own.
    kubeconfig: bool,
}

const API_SERVER_NAMES: [&str; 7] = [
    NODE_ADDRESS,
    API_SERVICE_ADDRESS,
    "127.0.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

const SUBJECTS: [Subject; 8] = [
    Subject::client("admin", "admin", Some("system:masters")),
    Subject::client("controller-manager", "system:kube-controller-manager", None),
    Subject::client("scheduler", "system:kube-scheduler", None),
    Subject::client("proxy", "system:kube-proxy", None),
    Subject::client("provisioner", "local-kubernetes:provisioner", None),
    Subject {
        file: "kubelet",
        user: "system:node:node1",
        group: Some("system:nodes"),
        serves: &[NODE_ADDRESS, NODE_NAME],
        kubeconfig: true,
    },
    Subject {
        file: "apiserver",
        user: "kube-apiserver",
        group: None,
        serves: &API_SERVER_NAMES,
        kubeconfig: false,
    },
    Subject {
        file: "apiserver-kubelet-client",
        user: "kube-apiserver-kubelet-client",
        group: Some("system:masters"),
        serves: &[],
        kubeconfig: false,
    },
];

impl Subject {
    const fn client(file: &'static str, user: &'static str, group: Option<&'static str>) -> Self {
        Self {
            file,
            user,
            group,
            serves: &[],
            kubeconfig: true,
        }
    }
}

/// Makes the authority, the certificates, the service account key and the kubeconfigs, unless they
/// are there.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn ensure(layout: &Layout) -> Result<()> {
    let folder = layout.pki();
    // Written last, so its presence means that all the others are whole.
    if layout.kubeconfig().is_file() {
        return Ok(());
    }
    fs_err::create_dir_all(&folder)?;
    let authority = authority()?;
    write_private(&folder.join("ca.crt"), authority.pem())?;
    let service_accounts = KeyPair::generate()?;
    write_private(&folder.join("sa.key"), service_accounts.serialize_pem())?;
    write_private(&folder.join("sa.pub"), service_accounts.public_key_pem())?;
    for subject in &SUBJECTS {
        issue(&folder, &authority, subject)?;
    }
    fs_err::copy(
        folder.join("admin.kubeconfig"),
        layout.join("kubeconfig.new"),
    )?;
    fs_err::rename(layout.join("kubeconfig.new"), layout.kubeconfig())?;
    Ok(())
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "local-kubernetes");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn issue(
    folder: &Path,
    authority: &CertifiedIssuer<'static, KeyPair>,
    subject: &Subject,
) -> Result<()> {
    let names: Vec<String> = subject.serves.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, subject.user);
    if let Some(group) = subject.group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !subject.serves.is_empty() {
        params
            .extended_key_usages
            .push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    let (certificate_file, key_file) = (
        folder.join(format!("{}.crt", subject.file)),
        folder.join(format!("{}.key", subject.file)),
    );
    write_private(&certificate_file, certificate.pem())?;
    write_private(&key_file, key.serialize_pem())?;
    if subject.kubeconfig {
        let text = kubeconfig(&authority.pem(), &certificate.pem(), &key.serialize_pem());
        write_private(&folder.join(format!("{}.kubeconfig", subject.file)), text)?;
    }
    Ok(())
}

fn kubeconfig(authority: &str, certificate: &str, key: &str) -> String {
    let [authority, certificate, key] =
        [authority, certificate, key].map(|pem| BASE64_STANDARD.encode(pem));
    format!(
        "apiVersion: v1
kind: Config
current-context: local-kubernetes
contexts:
- name: local-kubernetes
  context: {{cluster: local-kubernetes, user: local-kubernetes}}
clusters:
- name: local-kubernetes
  cluster:
    server: https://{NODE_ADDRESS}:{API_PORT}
    certificate-authority-data: {authority}
users:
- name: local-kubernetes
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::at(folder.path());
        ensure(&layout).unwrap();
        for file in [
            layout.kubeconfig(),
            layout.pki().join("apiserver.key"),
            layout.pki().join("sa.key"),
        ] {
            assert_eq!(
                fs_err::metadata(&file).unwrap().permissions().mode() & 0o777,
                0o600,
                "{}",
                file.display()
            );
        }
    }
}
