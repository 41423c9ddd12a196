//! The parts of Kubernetes' documents that an export uses, in the order in which people write their fields.

use super::resources::Toleration;
pub(super) use super::yaml::YamlText;
use serde::Serialize;
use std::collections::BTreeMap;

/// A document: what every resource has.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Resource<S> {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    pub(super) metadata: Metadata,
    pub(super) spec: S,
}

#[derive(Debug, Serialize)]
pub(super) struct Metadata {
    pub(super) name: String,
}

/// The template of pods.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PodTemplate {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<PodMetadata>,
    pub(super) spec: PodSpec,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct PodMetadata {
    pub(super) annotations: BTreeMap<&'static str, YamlText>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restart_policy: Option<&'static str>,
    pub(super) automount_service_account_token: bool,
    pub(super) security_context: SecurityContext,
    pub(super) termination_grace_period_seconds: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) node_selector: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) affinity: Option<serde_json::Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tolerations: Vec<Toleration>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) init_containers: Vec<PodContainer>,
    pub(super) containers: Vec<PodContainer>,
    pub(super) volumes: Vec<Volume>,
}

/// The user of all containers: root, as with hvdctl, whatever the image says.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecurityContext {
    pub(super) run_as_user: u32,
    pub(super) run_as_group: u32,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodContainer {
    pub(super) name: &'static str,
    pub(super) image: String,
    pub(super) image_pull_policy: &'static str,
    pub(super) command: Vec<YamlText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) working_dir: Option<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) env: Vec<EnvVar>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) ports: Vec<Port>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) startup_probe: Option<PodProbe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) readiness_probe: Option<PodProbe>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) resources: Option<PodResources>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) volume_mounts: Vec<VolumeMount>,
}

/// A variable: a value, or where one is.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EnvVar {
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<YamlText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) value_from: Option<ValueFrom>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ValueFrom {
    FieldRef(FieldRef),
    SecretKeyRef { name: String, key: YamlText },
}

impl EnvVar {
    /// Returns a variable with a value in which Kubernetes replaces `$(NAME)`.
    pub(super) fn of(name: impl Into<String>, value: impl Into<YamlText>) -> EnvVar {
        EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
    }

    pub(super) fn from(name: impl Into<String>, source: ValueFrom) -> EnvVar {
        EnvVar { name: name.into(), value: None, value_from: Some(source) }
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Port {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'static str>,
    pub(super) container_port: u16,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodProbe {
    #[serde(flatten)]
    pub(super) check: ProbeCheck,
    pub(super) period_seconds: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timeout_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failure_threshold: Option<u64>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ProbeCheck {
    TcpSocket { port: u16 },
    HttpGet { path: YamlText, port: u16 },
    Exec { command: Vec<YamlText> },
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct PodResources {
    pub(super) limits: BTreeMap<String, YamlText>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VolumeMount {
    pub(super) name: &'static str,
    pub(super) mount_path: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) read_only: bool,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Volume {
    pub(super) name: &'static str,
    #[serde(flatten)]
    pub(super) source: VolumeSource,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum VolumeSource {
    EmptyDir(EmptyDir),
    #[serde(rename_all = "camelCase")]
    PersistentVolumeClaim {
        claim_name: String,
    },
    ConfigMap {
        name: String,
        items: Vec<ConfigMapItem>,
    },
    #[serde(rename = "downwardAPI")]
    DownwardApi {
        items: Vec<DownwardItem>,
    },
}

/// A file with the value of a field of its pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DownwardItem {
    pub(super) path: &'static str,
    pub(super) field_ref: FieldRef,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FieldRef {
    pub(super) field_path: &'static str,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct EmptyDir {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) medium: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size_limit: Option<String>,
}

/// A file of a volume: the key of its text, its path and, if it is not 0644, its mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct ConfigMapItem {
    pub(super) key: YamlText,
    pub(super) path: YamlText,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<u32>,
}
