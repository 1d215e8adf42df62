{{/* Names, labels and images. Each takes the chart's own scope: `.` here, `.Subcharts.loraplane` in a chart around it. */}}

{{- define "loraplane.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "loraplane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "loraplane.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "loraplane.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Of one part: (dict "root" . "part" "admin"). */}}
{{- define "loraplane.selectorLabels" -}}
app.kubernetes.io/name: {{ include "loraplane.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "loraplane.labels" -}}
{{ include "loraplane.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: loraplane
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Of ours: (dict "root" . "image" .Values.images.admin). */}}
{{- define "loraplane.image" -}}
{{- $repository := .image.repository -}}
{{- with .root.Values.images.registry }}{{ $repository = printf "%s/%s" . $repository }}{{ end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end }}

{{/* What every container has: no rights beyond those of its user, and a root that nobody writes to. */}}
{{- define "loraplane.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
privileged: false
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "loraplane.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "loraplane.placing" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The members of etcd as --etcd takes them. */}}
{{- define "loraplane.etcdEndpoints" -}}
{{- if .Values.etcd.single.enabled -}}
{{- printf "%s-etcd:2379" (include "loraplane.fullname" .) -}}
{{- else -}}
{{- join "," .Values.etcd.endpoints -}}
{{- end -}}
{{- end }}

{{/* User who shows a password. A certificate of one's own is shown instead of one that others have. */}}
{{- define "loraplane.etcdUser" -}}
{{- if .own.user }}{{ .own.user }}{{ else if not .own.tlsSecretName }}{{ .root.Values.etcd.user }}{{ end -}}
{{- end }}

{{/* Flags for etcd: (dict "root" . "own" .Values.sidecar.etcd); what `own` has counts more. */}}
{{- define "loraplane.etcdArgs" -}}
{{- $etcd := .root.Values.etcd -}}
{{- $user := include "loraplane.etcdUser" . -}}
- --etcd={{ include "loraplane.etcdEndpoints" .root }}
{{- with $etcd.prefix }}
- --prefix={{ . }}
{{- end }}
{{- if or .own.tlsSecretName $etcd.tlsSecretName }}
- --etcd-tls-ca=/run/secrets/loraplane/etcd-tls/ca.crt
{{- if not $user }}
- --etcd-tls-cert=/run/secrets/loraplane/etcd-tls/tls.crt
- --etcd-tls-key=/run/secrets/loraplane/etcd-tls/tls.key
{{- end }}
{{- end }}
{{- with $user }}
- --etcd-user={{ . }}
- --etcd-password-file=/run/secrets/loraplane/etcd-password/password
{{- end }}
{{- end }}

{{- define "loraplane.etcdMounts" -}}
{{- $etcd := .root.Values.etcd -}}
{{- if or .own.tlsSecretName $etcd.tlsSecretName }}
- {name: loraplane-etcd-tls, mountPath: /run/secrets/loraplane/etcd-tls, readOnly: true}
{{- end }}
{{- if include "loraplane.etcdUser" . }}
- {name: loraplane-etcd-password, mountPath: /run/secrets/loraplane/etcd-password, readOnly: true}
{{- end }}
{{- end }}

{{- define "loraplane.etcdVolumes" -}}
{{- $etcd := .root.Values.etcd -}}
{{- $user := include "loraplane.etcdUser" . -}}
{{- with or .own.tlsSecretName $etcd.tlsSecretName }}
- name: loraplane-etcd-tls
  # Whoever shows a password needs no key, least of all somebody else's.
  secret: {secretName: {{ . }}, defaultMode: 0440{{ if $user }}, items: [{key: ca.crt, path: ca.crt}]{{ end }}}
{{- end }}
{{- if $user }}
- name: loraplane-etcd-password
  secret: {secretName: {{ or .own.passwordSecretName $etcd.passwordSecretName }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Of probes: how a port with a certificate is asked. `.` has its tlsSecretName. */}}
{{- define "loraplane.scheme" -}}
{{- if .tlsSecretName }}, scheme: HTTPS{{ end }}
{{- end }}
