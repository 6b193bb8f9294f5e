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
# What people ask for. Read only: the operator never changes a spec.
- apiGroups: [dengine.io]
  resources: [dengineclusters, denginebenchmarks]
  verbs: [get, list, watch]
# A benchmark that an annotation of a cluster asks for is made, and the annotation removed, or noted as done in another one where
# a manifest keeps it; a benchmark whose time is over is deleted.
- apiGroups: [dengine.io]
  resources: [denginebenchmarks]
  verbs: [create, patch, delete]
- apiGroups: [dengine.io]
  resources: [dengineclusters]
  verbs: [patch]
# How it stands. `patch` is server-side apply. It is also what a benchmark's Job is allowed to do to its own benchmark;
# one can only grant what one has.
- apiGroups: [dengine.io]
  resources: [dengineclusters/status, denginebenchmarks/status]
  verbs: [patch]
# Owner references that hold up foreground deletion; some API servers ask for this.
- apiGroups: [dengine.io]
  resources: [dengineclusters/finalizers, denginebenchmarks/finalizers]
  verbs: [update]
# The members. The operator restarts a member by deleting its pod.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
# Volumes grow, and their claims are annotated with what they hold (patch); they go once their member was removed (delete). Claims are made by the StatefulSet.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch, delete]
# What a cluster and a benchmark consist of. Owner references delete it, not the operator.
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
# The StatefulSet is deleted, without its pods, only to be made anew with a larger claim template.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# A Job is deleted only when the next run of a schedule replaces it.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# A Job's permission to patch the status of its own benchmark.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
# Why the pods of a StatefulSet or a Job are refused; Kubernetes says so in events and nowhere else.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
# What happened, for people. `patch` counts a repeated event.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end -}}

{{/* What it may do besides where it looks at all namespaces: volumes are in none. */}}
{{- define "dengine-operator.volumeRules" -}}
# The volume of a member that was given up is kept until another votes in its place: its reclaim policy is changed and changed back.
# Those that are kept are found by a label.
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get, list, watch, patch]
{{- end -}}
