{{/* What is common to agents and runs. Each takes the root context. */}}

{{- define "treadle.name" -}}
{{ .Release.Name }}
{{- end }}

{{/* Kubernetes labels a job's pods with its name. */}}
{{- define "treadle.runName" -}}
{{- $name := printf "%s-%s" (include "treadle.name" .) .Values.run.name }}
{{- if gt (len $name) 63 }}{{ fail (printf "the run would be called '%s', which is longer than 63 characters; give a shorter run.name" $name) }}{{ end }}
{{- $name }}
{{- end }}

{{- define "treadle.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{/* Pods of a release, by which the network policy knows them. */}}
{{- define "treadle.selector" -}}
app.kubernetes.io/part-of: treadle
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "treadle.labels" -}}
{{ include "treadle.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "treadle.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
fsGroup: 1000
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "treadle.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "treadle.podAddress" -}}
- name: POD_IP
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
{{- end }}
