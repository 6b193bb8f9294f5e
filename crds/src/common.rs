//! Types that both kinds embed. They are narrow: a CRD that embeds whole PodSpecs is larger than
//! client-side `kubectl apply` can store.
#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each struct inside a function"
)]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// When the image is pulled, as in a Pod.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePullPolicy {
    /// Each time a container starts.
    Always,
    /// If the node does not have it.
    IfNotPresent,
    /// The node must have it.
    Never,
}

impl ImagePullPolicy {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Name of an object in the same namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
pub struct LocalRef {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// CPU, memory and other resources, as in a container.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Amounts that the scheduler reserves.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities_schema", extend("maxProperties" = 8))]
    pub requests: BTreeMap<String, Quantity>,
    /// Amounts that the container may not exceed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities_schema", extend("maxProperties" = 8))]
    pub limits: BTreeMap<String, Quantity>,
}

/// Where pods may run.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,
    /// How the pods spread over zones or other topologies, on top of the preference for different
    /// nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub topology_spread_constraints: Vec<TopologySpread>,
}

/// A tolerated taint, as in a Pod.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.operator) && self.operator == 'Exists' && \
    has(self.value))")
    .message("value must be absent when operator is Exists"))]
pub struct Toleration {
    /// Key of the taint; absent together with operator Exists means every taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub key: Option<String>,
    /// Equal (the default) or Exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect of the taint; absent means every effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// How long a NoExecute taint is tolerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub toleration_seconds: Option<i64>,
}

/// How a toleration compares.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationOperator {
    /// Key and value are those of the taint.
    Equal,
    /// The key is that of the taint, whatever its value.
    Exists,
}

/// Effect of a taint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// New pods are not scheduled.
    NoSchedule,
    /// New pods are scheduled elsewhere if possible.
    PreferNoSchedule,
    /// Running pods are evicted, too.
    NoExecute,
}

/// A topology spread constraint over the pods of one resource.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// By how many pods two topologies may differ.
    #[schemars(range(min = 1, max = 7))]
    pub max_skew: i32,
    /// Node label that names the topology, e.g. topology.kubernetes.io/zone.
    #[schemars(length(min = 1, max = 253))]
    pub topology_key: String,
    /// What happens to a pod that cannot satisfy it.
    pub when_unsatisfiable: WhenUnsatisfiable,
}

/// What the scheduler does with a pod that would break a spread constraint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsatisfiable {
    /// It stays pending.
    DoNotSchedule,
    /// It runs where it breaks the constraint least.
    ScheduleAnyway,
}

impl TolerationOperator {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "Equal",
            Self::Exists => "Exists",
        }
    }
}

impl TaintEffect {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl WhenUnsatisfiable {
    /// As Kubernetes spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DoNotSchedule => "DoNotSchedule",
            Self::ScheduleAnyway => "ScheduleAnyway",
        }
    }
}

/// Quantities by resource name. Written by hand: the generated schema repeats a page of description
/// each time and accepts any text.
pub(crate) fn quantities_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "x-kubernetes-int-or-string": true,
            "pattern": QUANTITY_PATTERN,
        },
    })
}

/// A map of labels.
pub(crate) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": { "type": "string", "maxLength": 63 },
    })
}

/// Kubernetes' own pattern of non-negative quantities.
pub(crate) const QUANTITY_PATTERN: &str =
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE][+-]?[0-9]+))?$";

// A newer version may write into a status what this one does not know, such as another phase. After
// `helm rollback` this version must still read the object. The operator computes the status again,
// so unknown values count as missing.

/// `None` for unknown values.
pub(crate) fn known<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// The default for unknown values.
pub(crate) fn known_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    Ok(known(deserializer)?.unwrap_or_default())
}

/// A list without its unknown items.
pub(crate) fn known_items<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let items = Vec::<Value>::deserialize(deserializer)?;
    let known = items.into_iter().map(serde_json::from_value);
    Ok(known.filter_map(Result::ok).collect())
}

/// A map with the default in place of each unknown value.
pub(crate) fn known_values<'de, D, T>(deserializer: D) -> Result<BTreeMap<String, T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
    let known = |(key, value)| (key, serde_json::from_value(value).unwrap_or_default());
    Ok(values.into_iter().map(known).collect())
}
