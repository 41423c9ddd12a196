//! The parts that an MPIJob and a JobSet share: image, variables, volumes, resources, and the comment above them.

use super::gaps::{OtherScheduler, missing};
use super::manifest::*;
use super::names::label;
use super::patch;
use super::project::{self, APPLIED, ProjectSource};
use super::resources::{GPU, Toleration, check_gpus, shared_memory};
use super::shape::Shape;
use super::yaml::YamlValue;
use super::{ExportRequest, Exported, ExportedVariable, ImageRequest, RankVariableMap, comment};
use crate::error::Error;
use crate::inventory::Pull;
use crate::paths::WORKSPACE;
use crate::runtime::spec::is_setup_image;
use crate::text::quote;
use crate::text::units::count;
use anyhow::Context as _;
use serde::Serialize;
use std::collections::BTreeMap;

/// The label in which GPU feature discovery writes a node's product.
const PRODUCT: &str = "nvidia.com/gpu.product";
/// The mount point of a ConfigMap's files, which are copied into a directory that programs can write to.
const TEXTS: &str = "/opt/hvdctl/project";
/// Copies them without the links of which the mount consists: kubelet keeps the files themselves in `..data`.
const COPY: &str = "cp -R /opt/hvdctl/project/..data/. /workspace/";

/// The parts that all pods of a job share.
pub(super) struct PodParts {
    /// The job's name.
    pub(super) name: String,
    image: String,
    pull: &'static str,
    grace: u64,
    shm_size: u64,
    product: Option<String>,
    tolerations: Vec<Toleration>,
    /// The name of the Secret with variables.
    secret: String,
    project: ProjectVolume,
    missing: Vec<String>,
    warnings: Vec<String>,
    commands: Vec<String>,
}

enum ProjectVolume {
    Claim(String),
    Image,
    Texts { name: String, items: Vec<ConfigMapItem> },
}

impl PodParts {
    /// Reads them from a request. `suffix`: the most characters that Kubernetes adds to the job's name for a pod.
    pub(super) fn new(request: &ExportRequest<'_>, suffix: usize) -> Result<PodParts, Error> {
        let cluster = &request.inventory.cluster;
        let missing = missing(request, OtherScheduler::Kubernetes)?;
        let name = label(request.name, suffix);
        let mut warnings = Vec::new();
        if name != request.name {
            warnings.push(format!(
                "the job is named {name}: Kubernetes refuses {}, or a pod's name that begins with it",
                quote::readable(request.name)
            ));
        }
        let image = image(&cluster.image, &request.image)?;
        if is_setup_image(&image) {
            warnings
                .push(format!("{image} is an image that hvdctl made on the nodes: no registry has it under this name"));
        }
        let mut commands = Vec::new();
        if request.image.dockerfile.is_some() {
            let tag = quote::readable(request.image.tag.as_deref().unwrap_or_default());
            commands.push(format!("docker build -t {tag} -f DOCKERFILE . && docker push {tag}"));
        }
        let project = match request.project {
            ProjectSource::Claim(claim) => ProjectVolume::Claim(claim_name(claim)?),
            ProjectSource::Image => ProjectVolume::Image,
            ProjectSource::Texts(files) => {
                let (name, items) = (format!("{name}-project"), project::items(files));
                commands.push(project::creation(&name, &items));
                ProjectVolume::Texts { name, items }
            }
        };
        let secret = format!("{name}-env");
        let secrets = request.secrets();
        if !secrets.is_empty() {
            // kubectl takes the value of a line without `=` from its own environment, and an empty one if it is not set
            let set: Vec<String> = secrets.iter().map(|name| format!("\"${{{name}?is not set}}\"")).collect();
            commands.push(format!(
                "sh -c ': {}' && printf '%s\\n' {} | kubectl create secret generic {secret} --from-env-file=/dev/stdin \
                 {APPLIED}",
                set.join(" "),
                secrets.join(" ")
            ));
        }
        Ok(PodParts {
            secret,
            product: product_of(request)?,
            pull: match cluster.pull {
                Pull::Always => "Always",
                Pull::Never => "Never",
                Pull::Missing | Pull::Peers => "IfNotPresent",
            },
            tolerations: request.pods.tolerations.clone(),
            grace: cluster.stop_grace.as_secs(),
            shm_size: cluster.shm_size,
            name,
            image,
            project,
            missing,
            warnings,
            commands,
        })
    }

    /// Returns the `given` variables of ranks with those of a launcher before them, and with those of every job.
    ///
    /// # Errors
    /// One of the user's that the document sets itself.
    pub(super) fn env(&self, own: Vec<EnvVar>, given: &RankVariableMap) -> Result<Vec<EnvVar>, Error> {
        if let Some(both) = own.iter().find(|own| given.contains_key(&own.name)) {
            return Err(Error::usage(
                format!("{} cannot be set: the exported job sets it", both.name),
                "remove it from -e, `env` and `env_file`, or set it in the command: env NAME=VALUE PROGRAM",
            ));
        }
        Ok(own.into_iter().chain(env(given, &self.secret)).collect())
    }

    /// Returns a container with the image and the project. Of its arguments, `command` has those in which `$` is
    /// Kubernetes' own.
    pub(super) fn container(&self, name: &'static str, command: Vec<YamlText>) -> PodContainer {
        PodContainer {
            name,
            image: self.image.clone(),
            image_pull_policy: self.pull,
            command,
            working_dir: Some(WORKSPACE),
            volume_mounts: self.mounts(),
            ..PodContainer::default()
        }
    }

    /// Returns the resources of a pod as the container of its ranks asks for them.
    pub(super) fn resources(&self, request: &ExportRequest<'_>, shape: Shape) -> Result<Option<PodResources>, Error> {
        let limits = limits(request, shape)?;
        Ok((!limits.is_empty()).then_some(PodResources { limits }))
    }

    /// Returns a line of a document's comment: the pods of `ranks`, and their sizes.
    pub(super) fn size(&self, request: &ExportRequest<'_>, ranks: &str, shape: Shape) -> Result<String, Error> {
        let Shape { pods, ranks: of_pod, gpus } = shape;
        let resources = match (gpus, request.pods.resources.is_empty()) {
            (0, true) => "no GPUs".to_owned(),
            (_, true) => count(gpus as usize, "GPU"),
            (_, false) => {
                let limits = limits(request, shape)?;
                limits.iter().map(|(name, n)| format!("{} {name}", n.as_str())).collect::<Vec<_>>().join(", ")
            }
        };
        Ok(format!(
            "{ranks}: {} in {}, each with {} and {resources}.",
            count((pods * of_pod) as usize, "rank"),
            count(pods as usize, "pod"),
            count(of_pod as usize, "rank"),
        ))
    }

    /// Returns a pod with this container. `on_gpus`: whether it needs a node with the GPUs that were asked for.
    pub(super) fn pod(&self, container: PodContainer, restart: Option<&'static str>, on_gpus: bool) -> PodTemplate {
        let product = self.product.clone().filter(|_| on_gpus);
        let copying = matches!(self.project, ProjectVolume::Texts { .. }).then(|| {
            let texts = VolumeMount { name: "project-texts", mount_path: TEXTS, read_only: true };
            PodContainer {
                working_dir: None,
                volume_mounts: vec![VolumeMount { name: "project", mount_path: WORKSPACE, read_only: false }, texts],
                ..self.container("project", ["sh", "-c", COPY].map(YamlText::from).into())
            }
        });
        PodTemplate {
            metadata: None,
            spec: PodSpec {
                restart_policy: restart,
                automount_service_account_token: false,
                security_context: SecurityContext::default(),
                termination_grace_period_seconds: self.grace,
                node_selector: product.map(|product| (PRODUCT, product)).into_iter().collect(),
                affinity: None,
                tolerations: self.tolerations.clone(),
                init_containers: copying.into_iter().collect(),
                containers: vec![container],
                volumes: self.volumes(),
            },
        }
    }

    fn mounts(&self) -> Vec<VolumeMount> {
        let shm = VolumeMount { name: "shm", mount_path: "/dev/shm", read_only: false };
        let project = VolumeMount { name: "project", mount_path: WORKSPACE, read_only: false };
        match self.project {
            ProjectVolume::Image => vec![shm],
            ProjectVolume::Claim(_) | ProjectVolume::Texts { .. } => vec![project, shm],
        }
    }

    fn volumes(&self) -> Vec<Volume> {
        let empty = |name, source| Volume { name, source: VolumeSource::EmptyDir(source) };
        let shm = EmptyDir { medium: Some("Memory"), size_limit: Some(quantity(self.shm_size)) };
        let of_project = match &self.project {
            ProjectVolume::Image => Vec::new(),
            ProjectVolume::Claim(claim) => {
                let source = VolumeSource::PersistentVolumeClaim { claim_name: claim.clone() };
                vec![Volume { name: "project", source }]
            }
            ProjectVolume::Texts { name, items } => {
                let source = VolumeSource::ConfigMap { name: name.clone(), items: items.clone() };
                vec![empty("project", EmptyDir::default()), Volume { name: "project-texts", source }]
            }
        };
        of_project.into_iter().chain([empty("shm", shm)]).collect()
    }

    /// Returns the document, with a comment that says what it is and what comes before it. `sizes`: lines about its pods.
    pub(super) fn document(
        self,
        request: &ExportRequest<'_>,
        resource: &impl Serialize,
        kind: &str,
        sizes: Vec<String>,
    ) -> Result<Exported, Error> {
        let PodParts { name, missing, mut warnings, mut commands, project, .. } = self;
        commands.push("kubectl apply --server-side --validate=strict -f FILE".to_owned());
        let mut lines = vec![format!(
            "{kind}, made by `hvdctl export` from the inventory of the cluster {}.",
            request.inventory.cluster.name
        )];
        lines.extend(sizes);
        lines.extend([
            match project {
                ProjectVolume::Claim(claim) => {
                    format!("The project is in the PersistentVolumeClaim {claim}, which all pods mount at {WORKSPACE}.")
                }
                ProjectVolume::Image => format!("The project is in the image, at {WORKSPACE}."),
                ProjectVolume::Texts { name, .. } => format!(
                    "The project is in the ConfigMap {name}; each pod has a copy at {WORKSPACE}, which is lost with it."
                ),
            },
            String::new(),
            "In the project's directory:".to_owned(),
        ]);
        lines.extend(commands.iter().map(|command| format!("  {command}")));
        if !missing.is_empty() {
            lines.extend([String::new(), "Without an equivalent:".to_owned()]);
            lines.extend(missing.iter().map(|line| format!("  {line}")));
        }
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        let written = |error| anyhow::Error::new(error).context("cannot write the document");
        let yaml = serde_saphyr::to_string_with_options(resource, options).map_err(written)?;
        let read: YamlValue = serde_saphyr::from_str(&yaml).context("cannot read the document that was written")?;
        let YamlValue::Map(mut document) = read else { unreachable!("a resource has fields") };
        patch::apply(&request.pods.patches, &mut document)?;
        warnings.extend(check_gpus(request, &document)?);
        warnings.extend(shared_memory(&document));
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        let yaml = serde_saphyr::to_string_with_options(&YamlValue::Map(document), options).map_err(written)?;
        Ok(Exported { name, text: comment(&lines) + &yaml, missing, warnings, commands })
    }
}

/// Returns the resources of a pod that has ranks: its GPUs, and those that options name.
fn limits(request: &ExportRequest<'_>, shape: Shape) -> Result<BTreeMap<String, YamlText>, Error> {
    let gpu = request.pods.accelerators()?.map_or(GPU, |(name, _)| name);
    let others = request.pods.resources.iter().filter(|one| one.name != gpu);
    let others = others.map(|one| (one.name.clone(), YamlText::from(one.quantity.as_str())));
    let gpus = (shape.gpus > 0).then(|| (gpu.to_owned(), YamlText::from(shape.gpus.to_string())));
    Ok(gpus.into_iter().chain(others).collect())
}

/// Checks that the inventory has an image.
///
/// # Errors
/// Ranks that are processes.
pub(super) fn check_runtime(request: &ExportRequest<'_>) -> Result<(), Error> {
    match request.inventory.cluster.can().images {
        true => Ok(()),
        false => Err(Error::usage(
            "the ranks of this inventory are processes without a container, but a pod needs an image",
            "set cluster.image, and leave out runtime = \"process\"; or export sbatch",
        )),
    }
}

/// Returns text in which Kubernetes replaces no `$(NAME)`, in a command or a variable.
pub(super) fn literal(text: &str) -> String {
    text.replace('$', "$$")
}

/// Returns the variables of every rank.
fn env(variables: &RankVariableMap, secret: &str) -> Vec<EnvVar> {
    let unbuffered = ("PYTHONUNBUFFERED".to_owned(), ExportedVariable::Value("1".to_owned()));
    let has_own = variables.contains_key(&unbuffered.0);
    let own = (!has_own).then_some((&unbuffered.0, &unbuffered.1));
    let of = |(name, value): (&String, &ExportedVariable)| match value {
        ExportedVariable::Value(value) => EnvVar::of(name, literal(value)),
        ExportedVariable::Secret | ExportedVariable::Withheld => {
            EnvVar::from(name, ValueFrom::SecretKeyRef { name: secret.to_owned(), key: name.as_str().into() })
        }
    };
    own.into_iter().chain(variables).map(of).collect()
}

/// Returns the image of the pods: the one that was built, or the cluster's, with its digest.
fn image(of_cluster: &str, request: &ImageRequest) -> Result<String, Error> {
    let image = match (&request.dockerfile, &request.tag) {
        (Some(_), Some(tag)) => tag.as_str(),
        (Some(_), None) => {
            return Err(Error::usage(
                "the job needs an image that is not built yet, and its name in a registry",
                "--tag REGISTRY/NAME:TAG; hvdctl prints the Dockerfile, and --no-setup uses the cluster's image",
            ));
        }
        (None, Some(_)) => {
            return Err(Error::usage(
                "--tag names an image that is built, but this job uses the cluster's",
                "leave out --tag, or put the project into the image: --project-in-image",
            ));
        }
        (None, None) => of_cluster,
    };
    let Some(digest) = &request.pin else { return Ok(image.to_owned()) };
    match image.split_once('@') {
        Some((_, known)) if known != digest => Err(Error::usage(
            format!("--pin {digest}: the inventory pins the image to {known}"),
            "leave out --pin, or change cluster.image",
        )),
        Some(_) => Ok(image.to_owned()),
        None => Ok(format!("{image}@{digest}")),
    }
}

/// Returns the name of a claim.
fn claim_name(claim: &str) -> Result<String, Error> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let is_end = |c: char| c.is_ascii_alphanumeric();
    // RFC 1123: a subdomain
    let is_name = claim.len() <= 253
        && claim.split('.').all(|part| part.starts_with(is_end) && part.ends_with(is_end))
        && claim.chars().all(plain);
    match is_name {
        true => Ok(claim.to_owned()),
        false => Err(Error::usage(
            format!("--pvc {}: a PersistentVolumeClaim cannot have this name", quote::readable(claim)),
            "name one of `kubectl get pvc`: lower-case letters, digits, `-` and `.`",
        )),
    }
}

/// Returns the product of the GPUs that the pods need, as [`product`].
///
/// # Errors
/// An accelerator that has no such label.
fn product_of(request: &ExportRequest<'_>) -> Result<Option<String>, Error> {
    let Some(name) = request.pods.gpu_product.as_deref() else { return Ok(None) };
    match request.pods.accelerators()? {
        Some((resource, _)) if !resource.starts_with("nvidia.com/") => Err(Error::usage(
            format!("--gpu-product names GPUs of NVIDIA, but the pods ask for {resource}"),
            "select nodes with a nodeSelector in --patch",
        )),
        _ => product(name).map(Some),
    }
}

/// Returns the product of a GPU as the label of a node has it, in which GPU feature discovery replaces spaces.
fn product(name: &str) -> Result<String, Error> {
    let name = name.trim().replace(' ', "-");
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let plain = |c: char| is_end(c) || "-_.".contains(c);
    match !name.is_empty()
        && name.len() <= 63
        && name.starts_with(is_end)
        && name.ends_with(is_end)
        && name.chars().all(plain)
    {
        true => Ok(name),
        false => Err(Error::usage(
            format!("--gpu-product {}: a node label cannot have this value", quote::readable(&name)),
            "name it as nvidia-smi does, or as kubectl get nodes -L nvidia.com/gpu.product shows it",
        )),
    }
}

/// Returns a number of bytes as Kubernetes writes it.
fn quantity(bytes: u64) -> String {
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units.into_iter().find(|(shift, _)| bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_exactly() {
        let found = [8 << 30, 1536 << 20, 3 << 10, 1000].map(quantity);
        assert_eq!(found, ["8Gi", "1536Mi", "3Ki", "1000"]);
    }

    #[test]
    fn products_and_claims_are_checked() {
        assert_eq!(product("NVIDIA A100-SXM4-80GB").unwrap(), "NVIDIA-A100-SXM4-80GB");
        for bad in ["", "a:b", "-a", &"a".repeat(64)] {
            assert!(product(bad).is_err(), "{bad}");
        }
        assert_eq!(claim_name("data.1").unwrap(), "data.1");
        for bad in ["", "A", "a_b", "a..b", ".a", "a-", "x: y"] {
            assert!(claim_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_image_is_pinned_once() {
        let (one, other) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        let of = |image: &str, pin: Option<&String>| image_of(image, pin).map_err(|error| error.to_string());
        assert_eq!(of("app:1", None).unwrap(), "app:1");
        assert_eq!(of("reg:5000/app:1", Some(&one)).unwrap(), format!("reg:5000/app:1@{one}"));
        assert_eq!(of(&format!("app@{one}"), Some(&one)).unwrap(), format!("app@{one}"));
        assert!(of(&format!("app@{one}"), Some(&other)).unwrap_err().contains("pins the image to sha256:aaa"));
    }

    fn image_of(image_name: &str, pin: Option<&String>) -> Result<String, Error> {
        image(image_name, &ImageRequest { pin: pin.cloned(), ..ImageRequest::default() })
    }
}
