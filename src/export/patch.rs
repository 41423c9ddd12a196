//! Patches of a user for an exported document, merged as Kubernetes merges strategic merge patches
//! (`staging/src/k8s.io/apimachinery/pkg/util/strategicpatch`).

use super::yaml::{YamlMap, YamlValue};
use crate::error::Error;
use crate::text::quote::readable;

/// The lists that are merged by a field of their elements: `patchMergeKey` of Kubernetes' types
/// (`staging/src/k8s.io/api/core/v1/types.go`), and the list of a JobSet's jobs. A patch replaces any other list.
const MERGED: &[(&str, &str)] = &[
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("resourceClaims", "name"),
    ("schedulingGates", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("replicatedJobs", "name"),
];
/// A list that only options set before, and that a patch lengthens.
const LENGTHENED: &str = "tolerations";
/// The instruction of a patch to remove an element or to replace a whole value.
const DIRECTIVE: &str = "$patch";

/// A patch that is merged into a document.
#[derive(Debug, Clone, PartialEq)]
pub struct PodPatch {
    /// The file's name, for messages.
    file: String,
    fields: YamlMap,
}

/// Reads the patches of a file, one for each of its documents.
///
/// # Errors
/// A text that is no patch: no YAML, or other fields than those of a template of pods.
pub fn read_patches(file: &str, text: &str) -> Result<Vec<PodPatch>, Error> {
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    let documents: Vec<YamlValue> = serde_saphyr::from_multiple_with_options(text, options)
        .map_err(|error| refused(file, &error.to_string(), "correct it; `kubectl explain pod.spec` has the fields"))?;
    let mut patches = Vec::new();
    for document in documents.into_iter().filter(|document| *document != YamlValue::Null) {
        let YamlValue::Map(fields) = document else {
            return Err(refused(file, &format!("it is {}, and no mapping", document.kind()), FORM));
        };
        let other = |(name, _): &&(String, YamlValue)| !["metadata", "spec"].contains(&name.as_str());
        match fields.0.iter().find(other) {
            Some((name, _)) if fields.get("kind").is_none() => {
                let why = format!("{} is no field of a template of pods", readable(name));
                return Err(refused(file, &why, FORM));
            }
            _ => patches.push(PodPatch { file: file.to_owned(), fields }),
        }
    }
    match patches.is_empty() {
        true => Err(refused(file, "it is empty", FORM)),
        false => Ok(patches),
    }
}

const FORM: &str = "begin with `spec:` or `metadata:` of the pods, or with `kind:` of the document";

/// Merges patches into a document, in their order.
///
/// # Errors
/// A patch for another document, or one that does not fit its fields.
pub(super) fn apply(patches: &[PodPatch], document: &mut YamlMap) -> Result<(), Error> {
    for patch in patches {
        let wrong =
            |why: String| refused(&patch.file, &why, "correct the patch; `export` without it shows the document");
        match patch.fields.get("kind") {
            Some(_) => {
                for name in ["apiVersion", "kind"] {
                    if let Some(given) = patch.fields.get(name).filter(|given| Some(*given) != document.get(name)) {
                        let given =
                            if let YamlValue::Text(text) = given { readable(text) } else { given.kind().into() };
                        let own = document.text(name).unwrap_or_default();
                        return Err(wrong(format!("its {name} is {given}, but the document's is {own}")));
                    }
                }
                merge(document, patch.fields.clone(), "").map_err(wrong)?;
            }
            None => {
                let own: Vec<String> = pods(document).iter().flat_map(|pod| container_names(pod)).collect();
                for_each_pod(document, &mut |pod| {
                    let here = container_names(pod);
                    let elsewhere =
                        |name: &str| own.iter().any(|one| one == name) && !here.iter().any(|one| one == name);
                    merge(pod, for_pod(&patch.fields, elsewhere), "")
                })
                .map_err(wrong)?;
            }
        }
        check(document).map_err(wrong)?;
    }
    Ok(())
}

/// Returns the templates of pods in a document.
pub(super) fn pods(document: &YamlMap) -> Vec<&YamlMap> {
    let mut found = Vec::new();
    for (name, value) in &document.0 {
        match value {
            YamlValue::Map(map) if name == "template" && is_of_pods(map) => found.push(map),
            YamlValue::Map(map) => found.extend(pods(map)),
            YamlValue::List(list) => found.extend(list.iter().filter_map(YamlValue::as_map).flat_map(pods)),
            _ => {}
        }
    }
    found
}

/// Changes the templates of pods in a document.
fn for_each_pod(
    document: &mut YamlMap,
    change: &mut impl FnMut(&mut YamlMap) -> Result<(), String>,
) -> Result<(), String> {
    for (name, value) in &mut document.0 {
        match value {
            YamlValue::Map(map) if name == "template" && is_of_pods(map) => change(map)?,
            YamlValue::Map(map) => for_each_pod(map, change)?,
            YamlValue::List(list) => {
                for value in list {
                    if let YamlValue::Map(map) = value {
                        for_each_pod(map, change)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn is_of_pods(template: &YamlMap) -> bool {
    template.map("spec").is_some_and(|spec| spec.get("containers").is_some())
}

/// Returns the containers of a template of pods, without those that prepare them.
pub(super) fn containers(pod: &YamlMap) -> impl Iterator<Item = &YamlMap> {
    pod.map("spec").into_iter().flat_map(|spec| spec.maps("containers"))
}

fn container_names(pod: &YamlMap) -> Vec<String> {
    containers(pod).filter_map(|container| container.text("name")).map(str::to_owned).collect()
}

/// Returns a patch without the containers of other pods.
fn for_pod(patch: &YamlMap, elsewhere: impl Fn(&str) -> bool) -> YamlMap {
    let mut patch = patch.clone();
    if let Some(YamlValue::Map(spec)) = patch.get_mut("spec")
        && let Some(YamlValue::List(list)) = spec.get_mut("containers")
    {
        list.retain(|one| !one.as_map().and_then(|one| one.text("name")).is_some_and(&elsewhere));
    }
    patch
}

/// Merges a mapping. `path`: its place, for messages.
fn merge(into: &mut YamlMap, patch: YamlMap, path: &str) -> Result<(), String> {
    match patch.text(DIRECTIVE) {
        Some("replace") => into.0.clear(),
        Some("merge") | None => {}
        Some(other) => return Err(format!("{}{DIRECTIVE}: {} is not understood here", path, readable(other))),
    }
    for (name, value) in patch.0 {
        let place = format!("{path}{}", readable(&name));
        if name == DIRECTIVE {
            continue;
        }
        if name.starts_with('$') {
            return Err(format!("{place} is not understood: only {DIRECTIVE} is"));
        }
        match (into.get_mut(&name), value) {
            (_, YamlValue::Null) => into.0.retain(|(known, _)| *known != name),
            (Some(YamlValue::Map(own)), YamlValue::Map(patch)) => merge(own, patch, &format!("{place}."))?,
            (Some(YamlValue::List(own)), YamlValue::List(patch)) => {
                match MERGED.iter().find(|(merged, _)| *merged == name) {
                    Some((_, key)) => merge_list(own, patch, key, &place)?,
                    None if name == LENGTHENED => own.extend(patch),
                    None => *own = patch,
                }
            }
            (Some(own @ (YamlValue::Map(_) | YamlValue::List(_))), patch) => {
                return Err(format!("{place} is {}, but {} in the document", patch.kind(), own.kind()));
            }
            (Some(_), patch @ (YamlValue::Map(_) | YamlValue::List(_))) => {
                return Err(format!("{place} is {}, but a single value in the document", patch.kind()));
            }
            (Some(own), patch) => *own = patch,
            (None, patch) => {
                // where people write it
                let at = if name == "metadata" { 0 } else { into.0.len() };
                into.0.insert(at, (name, without_directives(patch, &place)?));
            }
        }
    }
    Ok(())
}

/// Merges a list by a field of its elements. New ones follow those of the document.
fn merge_list(into: &mut Vec<YamlValue>, patch: Vec<YamlValue>, key: &str, path: &str) -> Result<(), String> {
    let replaces = |value: &YamlValue| {
        value.as_map().is_some_and(|map| map.0.len() == 1 && map.text(DIRECTIVE) == Some("replace"))
    };
    if patch.iter().any(replaces) {
        into.clear();
    }
    for element in patch.into_iter().filter(|value| !replaces(value)) {
        let named = element.as_map().and_then(|map| map.get(key)).cloned();
        let (YamlValue::Map(element), Some(name)) = (element, named) else {
            return Err(format!("an element of {path} has no {key}, by which they are merged"));
        };
        let at = into.iter().position(|own| own.as_map().and_then(|own| own.get(key)) == Some(&name));
        match (element.text(DIRECTIVE), at.map(|at| (at, &mut into[at]))) {
            (Some("delete"), Some((at, _))) => {
                into.remove(at);
            }
            (Some("delete"), None) => {}
            (_, Some((_, YamlValue::Map(own)))) => {
                let name = if let YamlValue::Text(text) = &name { readable(text) } else { key.to_owned() };
                merge(own, element, &format!("{path}[{name}]."))?;
            }
            _ => into.push(without_directives(YamlValue::Map(element), path)?),
        }
    }
    Ok(())
}

/// Returns a value that is new to the document: without what only removes or replaces.
fn without_directives(value: YamlValue, path: &str) -> Result<YamlValue, String> {
    match value {
        YamlValue::Map(map) => {
            let mut own = YamlMap::default();
            merge(&mut own, map, &format!("{path}."))?;
            Ok(YamlValue::Map(own))
        }
        YamlValue::List(list) => {
            let list: Result<Vec<YamlValue>, String> =
                list.into_iter().map(|value| without_directives(value, path)).collect();
            Ok(YamlValue::List(list?))
        }
        other => Ok(other),
    }
}

/// Checks what a patch leaves: a volume has one source, and a container an image.
fn check(document: &YamlMap) -> Result<(), String> {
    for pod in pods(document) {
        let Some(spec) = pod.map("spec") else { continue };
        if let Some(volume) = spec.maps("volumes").find(|volume| volume.0.len() > 2) {
            let sources: Vec<&str> =
                volume.0.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "name").collect();
            return Err(format!(
                "the volume {} then has several sources ({}); set the one that the document has to null",
                readable(volume.text("name").unwrap_or_default()),
                sources.join(", ")
            ));
        }
        let all = ["initContainers", "containers"].into_iter().flat_map(|list| spec.maps(list));
        if let Some(bare) = all.into_iter().find(|container| container.get("image").is_none()) {
            return Err(format!(
                "the container {} has no image; those of the document are {}",
                readable(bare.text("name").unwrap_or_default()),
                pods(document)
                    .iter()
                    .flat_map(|pod| containers(pod))
                    .filter(|own| own.get("image").is_some())
                    .filter_map(|own| own.text("name"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
    }
    match pods(document).iter().all(|pod| containers(pod).next().is_some()) {
        true => Ok(()),
        false => Err("it leaves pods without a container".to_owned()),
    }
}

fn refused(file: &str, why: &str, hint: &str) -> Error {
    Error::usage(format!("--patch {}: {}", readable(file), why.trim_end()), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
kind: MPIJob
metadata: {name: a}
spec:
  Launcher: {template: {spec: {containers: [{name: launcher, image: i, env: [{name: A, value: '1'}]}]}}}
  Worker:
    template:
      spec:
        tolerations: [{key: of-option}]
        containers:
        - {name: worker, image: i, command: [a, b], volumeMounts: [{name: shm, mountPath: /dev/shm}]}
        volumes: [{name: shm, emptyDir: {medium: Memory}}]
";

    fn yaml(text: &str) -> YamlMap {
        serde_saphyr::from_str::<YamlValue>(text).unwrap().as_map().unwrap().clone()
    }

    fn patched(patch: &str) -> Result<String, String> {
        let text = |error: Error| error.to_string();
        let mut document = yaml(DOCUMENT);
        apply(&read_patches("p.yaml", patch).map_err(text)?, &mut document).map_err(text)?;
        // every value has a type of its own in JSON
        Ok(serde_json::to_string(
            &serde_saphyr::from_str::<serde_json::Value>(&serde_saphyr::to_string(&YamlValue::Map(document)).unwrap())
                .unwrap(),
        )
        .unwrap())
    }

    #[test]
    fn lists_are_merged_as_kubernetes_does() {
        let text = patched(
            "metadata: {labels: {team: '1'}}\nspec:\n  tolerations: [{key: x}]\n  nodeSelector: {gpu: yes}\n  containers:\n  \
             - {name: worker, command: [c], volumeMounts: [{mountPath: /data, name: data}, {mountPath: /dev/shm, readOnly: true}]}\n  \
             - {name: launcher, env: [{name: B, value: '2'}, {name: A, $patch: delete}]}\n  \
             - {name: side, image: s}\n  volumes: [{name: shm, emptyDir: {medium: null, sizeLimit: 1Gi}}]\n",
        )
        .unwrap();
        let at = |path: &str| {
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            value.pointer(path).map(ToString::to_string).unwrap_or_default()
        };
        assert_eq!(
            at("/spec/Launcher/template/spec/containers"),
            r#"[{"env":[{"name":"B","value":"2"}],"image":"i","name":"launcher"},{"image":"s","name":"side"}]"#
        );
        assert_eq!(
            at("/spec/Worker/template/spec/containers/0"),
            r#"{"command":["c"],"image":"i","name":"worker","volumeMounts":[{"mountPath":"/dev/shm","name":"shm","readOnly":true},{"mountPath":"/data","name":"data"}]}"#
        );
        assert_eq!(at("/spec/Worker/template/spec/tolerations"), r#"[{"key":"of-option"},{"key":"x"}]"#);
        assert_eq!(at("/spec/Worker/template/spec/volumes"), r#"[{"emptyDir":{"sizeLimit":"1Gi"},"name":"shm"}]"#);
        assert_eq!(at("/spec/Launcher/template/metadata/labels/team"), "\"1\"");
        // as `kubectl` reads it, which then complains
        assert_eq!(at("/spec/Launcher/template/spec/nodeSelector/gpu"), "true");
        assert_eq!(at("/metadata"), r#"{"name":"a"}"#);
    }

    #[test]
    fn a_patch_with_a_kind_is_for_the_document() {
        let of_worker = "kind: MPIJob\nmetadata: {labels: {kueue.x-k8s.io/queue-name: q}}\nspec: {Worker: {template: {spec: {priorityClassName: high}}}}\n";
        let text = patched(&format!("{of_worker}---\nspec: {{imagePullSecrets: [{{name: reg}}]}}\n")).unwrap();
        assert!(text.contains(r#""labels":{"kueue.x-k8s.io/queue-name":"q"}"#), "{text}");
        assert_eq!((text.matches("\"high\"").count(), text.matches("\"reg\"").count()), (1, 2), "{text}");
    }

    #[test]
    fn patches_that_do_not_fit_are_refused() {
        for (patch, why) in [
            ("tolerations: []", "tolerations is no field of a template of pods"),
            ("", "it is empty"),
            ("- a", "it is a list"),
            ("spec: [", "p.yaml"),
            ("kind: JobSet\nspec: {}", "its kind is JobSet, but the document's is MPIJob"),
            ("spec: {containers: [{image: x}]}", "an element of spec.containers has no name"),
            (
                "spec: {containers: [{name: ranks, env: []}]}",
                "the container ranks has no image; those of the document are launcher, worker",
            ),
            ("spec: {containers: {name: worker}}", "spec.containers is a mapping, but a list in the document"),
            (
                "spec: {containers: [{name: worker, image: {}}]}",
                "spec.containers[worker].image is a mapping, but a single value",
            ),
            ("spec: {$setElementOrder/containers: []}", "'spec.$setElementOrder/containers' is not understood"),
            (
                "spec: {volumes: [{name: shm, persistentVolumeClaim: {claimName: c}}]}",
                "several sources (emptyDir, persistentVolumeClaim)",
            ),
            ("spec: {containers: [{$patch: replace}]}", "it leaves pods without a container"),
        ] {
            let found = patched(patch).unwrap_err();
            assert!(found.replace('\'', "").contains(&why.replace('\'', "")), "{patch}: {found}");
        }
    }
}
