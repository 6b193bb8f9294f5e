{{/* Name of the operator's own objects. */}}
{{- define "dengine-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-operator" .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change, by which the operator's pods are selected. */}}
{{- define "dengine-operator.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* All labels of the operator's own objects. */}}
{{- define "dengine-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "dengine-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: dengine
{{- end -}}

{{- define "dengine-operator.lease" -}}
{{- .Values.leaderElection.leaseName | default (include "dengine-operator.fullname" .) -}}
{{- end -}}

{{/* Written on what the operator looks after; another release leaves that alone. */}}
{{- define "dengine-operator.identity" -}}
{{- printf "%s/%s" .Release.Namespace (include "dengine-operator.fullname" .) -}}
{{- end -}}

{{/* Whether pods name the user that they run as. OpenShift refuses those that do. Who upgrades with `--reuse-values` has no value
that came later. */}}
{{- define "dengine-operator.podUser" -}}
{{- $user := .Values.podUser | default "auto" -}}
{{- if ne $user "auto" -}}
{{- $user -}}
{{- else -}}
{{- .Capabilities.APIVersions.Has "security.openshift.io/v1" | ternary "assigned" "fixed" -}}
{{- end -}}
{{- end -}}

{{/* What the operator may do where its clusters are. Each rule says what for. */}}
{{- define "dengine-operator.rules" -}}
# Specs. Read only: the operator never changes one.
- apiGroups: [dengine.io]
  resources: [dengineclusters, denginebenchmarks]
  verbs: [get, list, watch]
# The benchmark annotation of a cluster creates a benchmark and is removed, or recorded in another
# annotation if a manifest declares it; a benchmark is deleted after its TTL.
- apiGroups: [dengine.io]
  resources: [denginebenchmarks]
  verbs: [create, patch, delete]
- apiGroups: [dengine.io]
  resources: [dengineclusters]
  verbs: [patch]
# Status. `patch` is server-side apply. A benchmark's Job may do it to its own benchmark; the
# operator can only grant permissions that it has.
- apiGroups: [dengine.io]
  resources: [dengineclusters/status, denginebenchmarks/status]
  verbs: [patch]
# Owner references that block foreground deletion; some API servers require this.
- apiGroups: [dengine.io]
  resources: [dengineclusters/finalizers, denginebenchmarks/finalizers]
  verbs: [update]
# The members. The operator restarts a member by deleting its pod.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# Claims grow and are annotated (patch), and are deleted once their member was removed. The
# StatefulSet creates them.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
# Objects of clusters and benchmarks. Kubernetes deletes them by their owner references.
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
# The StatefulSet is deleted, without its pods, only to recreate it with another claim template.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# A Job is deleted only when the next scheduled run replaces it.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# A Job's permission to patch the status of its own benchmark.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
# Why the pods of a StatefulSet or a Job are refused; only events show it.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# Events. `patch` counts a repeated one.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* What it may do besides where it looks at all namespaces: volumes are in none. */}}
{{- define "dengine-operator.volumeRules" -}}
# The volume of a replaced member is kept until its replacement votes: its reclaim policy is changed
# and restored.
# Volumes that are kept are found by a label.
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, patch]
{{- end -}}
