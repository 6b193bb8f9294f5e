//! Versions that can be built, as values of flags.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use dengine_local_kubernetes::programs::{EtcdVersion, KubernetesVersion};

/// Those of Kubernetes, by their numbers.
pub fn kubernetes() -> impl TypedValueParser<Value = KubernetesVersion> {
    numbered(KubernetesVersion::ALL, KubernetesVersion::number)
}

/// Those of etcd.
pub fn etcd() -> impl TypedValueParser<Value = EtcdVersion> {
    numbered(EtcdVersion::ALL, EtcdVersion::number)
}

fn numbered<T, const N: usize>(
    all: [T; N],
    number_of: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.map(number_of)).map(move |number| {
        let named = all.into_iter().find(|it| number_of(*it) == number);
        named.expect("only these numbers are possible")
    })
}
