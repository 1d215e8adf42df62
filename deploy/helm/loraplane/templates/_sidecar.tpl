{{/*
What other people's charts take. Their Chart.yaml has this chart as a dependency, with replicas.enabled and admin.enabled as they like,
and their pod of vLLM has the label app.kubernetes.io/part-of: loraplane where etcd is that of deploy/examples/etcd, and

    initContainers:
      {{- include "loraplane.plugin" .Subcharts.loraplane | nindent 6 }}
      {{- include "loraplane.sidecar" .Subcharts.loraplane | nindent 6 }}
    containers:
      - name: vllm
        env: {{- include "loraplane.engineEnv" .Subcharts.loraplane | nindent 8 }}
        volumeMounts: {{- include "loraplane.engineMounts" .Subcharts.loraplane | nindent 8 }}
        {{- include "loraplane.engineProbes" .Subcharts.loraplane | nindent 8 }}
    securityContext: {{- include "loraplane.podSecurity" .Subcharts.loraplane | nindent 6 }}
    terminationGracePeriodSeconds: {{ include "loraplane.graceSeconds" .Subcharts.loraplane }}
    volumes: {{- include "loraplane.volumes" .Subcharts.loraplane | nindent 6 }}
*/}}

{{/* Copies the plugin to where the engine finds it. An entry of initContainers; nothing where it comes by another way. */}}
{{- define "loraplane.plugin" -}}
{{- if eq .Values.plugin.source "initContainer" }}
- name: loraplane-plugin
  image: {{ include "loraplane.image" (dict "root" . "image" .Values.images.plugin) }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  command: [cp, -R, {{ printf "%s/." .Values.plugin.path }}, /plugin]
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 128Mi}
  securityContext:
    runAsUser: 10001
    {{- include "loraplane.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - {name: loraplane-plugin, mountPath: /plugin}
{{- end }}
{{- end }}

{{/*
The sidecar, as a native one: an init container that goes on. Its startup probe holds back the containers after it, and so may ask for
/livez alone: /readyz waits for the engine, which would wait for it. It has no readiness probe: the engine's container asks
for the pod, so that routers that look at containers alone agree with Services.
*/}}
{{- define "loraplane.sidecar" -}}
{{- include "loraplane.checkEtcd" . }}
{{- include "loraplane.checkSidecar" . }}
{{- $s := .Values.sidecar }}
- name: loraplane-sidecar
  image: {{ include "loraplane.image" (dict "root" . "image" .Values.images.sidecar) }}
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  restartPolicy: Always
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- with $s.zoneLabel }}
    - name: POD_ZONE
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ . }}']"}}
    {{- end }}
    {{- with $s.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  args:
    {{- include "loraplane.etcdArgs" (dict "root" . "own" $s.etcd) | nindent 4 }}
    - --pool={{ $s.pool }}
    - --replica=$(POD_NAME)
    - --engine=http://127.0.0.1:{{ .Values.engine.port }}
    - --advertise-url=http://$(POD_IP):{{ .Values.engine.port }}
    - --http=0.0.0.0:7602
    - --store={{ $s.store.path }}
    - --resolver-socket=/run/loraplane/resolver.sock
    - --engine-max-rank={{ .Values.engine.maxLoraRank }}
    - --engine-max-cpu-loras={{ .Values.engine.maxCpuLoras }}
    - --drain-timeout={{ $s.handOverSeconds }}
    {{- $labels := list }}
    {{- if $s.zoneLabel }}{{ $labels = append $labels "zone=$(POD_ZONE)" }}{{ end }}
    {{- range $key, $value := $s.labels }}{{ $labels = append $labels (printf "%s=%v" $key $value) }}{{ end }}
    {{- with $labels }}
    - --labels={{ join "," . }}
    {{- end }}
    {{- range $s.allowSource }}
    - --allow-source={{ . }}
    {{- end }}
    {{- with include "loraplane.storeBudget" . }}
    - --store-budget={{ . }}
    {{- end }}
    {{- if $s.controlTokenSecretName }}
    - --control-token-file=/run/secrets/loraplane/control/token
    {{- end }}
    {{- if $s.credentialsSecretName }}
    - --credentials=/run/secrets/loraplane/credentials/credentials.yaml
    {{- end }}
    {{- if $s.signatureKeysSecretName }}
    - --signature-keys=/run/secrets/loraplane/signature-keys/keys.yaml
    {{- end }}
    {{- if $s.signaturePolicyConfigMapName }}
    - --signature-policy=/run/loraplane-signature-policy/policy.yaml
    {{- end }}
    {{- if .Values.engine.apiKeySecretName }}
    - --engine-api-key-file=/run/secrets/loraplane/engine-key/key
    {{- end }}
    {{- if $s.http.tlsSecretName }}
    - --http-tls-cert=/run/secrets/loraplane/http-tls/tls.crt
    - --http-tls-key=/run/secrets/loraplane/http-tls/tls.key
    - --http-tls-ca=/run/secrets/loraplane/http-tls/ca.crt
    {{- end }}
    {{- if $s.http.tokenSecretName }}
    - --http-token-file=/run/secrets/loraplane/http-token/token
    {{- end }}
    {{- if .Values.insecure }}
    - --insecure
    {{- end }}
    {{- range $s.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  ports:
    - {name: loraplane, containerPort: 7602}
  startupProbe:
    httpGet: {path: /livez, port: 7602{{ include "loraplane.scheme" $s.http }}}
    periodSeconds: 1
    failureThreshold: 60
    timeoutSeconds: 3
  livenessProbe:
    httpGet: {path: /livez, port: 7602{{ include "loraplane.scheme" $s.http }}}
    periodSeconds: 10
    failureThreshold: 3
    timeoutSeconds: 5
  # Begins at once with the engine's hook, for an image of an engine that has none: presence says `leaving`.
  lifecycle:
    preStop:
      exec:
        command:
          - python
          - -c
          - |
            {{- include "loraplane.drainScript" (dict "root" . "wait" 0) | nindent 12 }}
  resources: {{- toYaml $s.resources | nindent 4 }}
  securityContext:
    runAsUser: 10001
    {{- include "loraplane.containerSecurity" . | nindent 4 }}
  volumeMounts:
    # The folder around the store, so that the store itself is the sidecar's own: anybody may write to a volume's root.
    - {name: loraplane-store, mountPath: {{ dir $s.store.path }}}
    - {name: loraplane-sockets, mountPath: /run/loraplane}
    - {name: loraplane-tmp, mountPath: /tmp}
    {{- include "loraplane.etcdMounts" (dict "root" . "own" $s.etcd) | trim | nindent 4 }}
    {{- if $s.controlTokenSecretName }}
    - {name: loraplane-control, mountPath: /run/secrets/loraplane/control, readOnly: true}
    {{- end }}
    {{- if $s.credentialsSecretName }}
    - {name: loraplane-credentials, mountPath: /run/secrets/loraplane/credentials, readOnly: true}
    {{- end }}
    {{- if $s.signatureKeysSecretName }}
    - {name: loraplane-signature-keys, mountPath: /run/secrets/loraplane/signature-keys, readOnly: true}
    {{- end }}
    {{- if $s.signaturePolicyConfigMapName }}
    - {name: loraplane-signature-policy, mountPath: /run/loraplane-signature-policy, readOnly: true}
    {{- end }}
    {{- if .Values.engine.apiKeySecretName }}
    - {name: loraplane-engine-key, mountPath: /run/secrets/loraplane/engine-key, readOnly: true}
    {{- end }}
    {{- if $s.http.tlsSecretName }}
    - {name: loraplane-http-tls, mountPath: /run/secrets/loraplane/http-tls, readOnly: true}
    {{- end }}
    {{- if $s.http.tokenSecretName }}
    - {name: loraplane-http-token, mountPath: /run/secrets/loraplane/http-token, readOnly: true}
    {{- end }}
    {{- with $s.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
Without a budget of its own an emptyDir's is nine tenths of its size: the kubelet ends the pod, engine and all, once there is more in it,
and the sidecar sees the node's disk alone.
*/}}
{{- define "loraplane.storeBudget" -}}
{{- $store := .Values.sidecar.store -}}
{{- if $store.budget -}}
{{- $store.budget -}}
{{- else if and $store.sizeLimit (not $store.hostPath) (not $store.claim.size) -}}
{{- $share := printf "%.3f" (mulf 0.9 (regexFind "^[0-9.]+" $store.sizeLimit)) | trimSuffix ".000" -}}
{{- printf "%s%sB" $share (regexFind "[EPTGMKk]i?$" $store.sizeLimit) -}}
{{- end -}}
{{- end }}

{{/* Volumes of the pod that the sidecar, the plugin and the engine share. */}}
{{- define "loraplane.volumes" -}}
{{- $s := .Values.sidecar -}}
{{- if $s.store.hostPath }}
- name: loraplane-store
  hostPath: {path: {{ $s.store.hostPath }}, type: Directory}
{{- else if not $s.store.claim.size }}
- name: loraplane-store
  emptyDir: {sizeLimit: {{ $s.store.sizeLimit }}}
{{- end }}
- name: loraplane-sockets
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: loraplane-tmp
  emptyDir: {sizeLimit: 1Gi}
{{- if eq .Values.plugin.source "initContainer" }}
- name: loraplane-plugin
  emptyDir: {sizeLimit: 16Mi}
{{- else if eq .Values.plugin.source "imageVolume" }}
- name: loraplane-plugin
  image:
    reference: {{ include "loraplane.image" (dict "root" . "image" .Values.images.plugin) }}
    pullPolicy: {{ .Values.images.pullPolicy }}
{{- end }}
{{- include "loraplane.etcdVolumes" (dict "root" . "own" $s.etcd) }}
{{- with $s.controlTokenSecretName }}
- name: loraplane-control
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $s.credentialsSecretName }}
- name: loraplane-credentials
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $s.signatureKeysSecretName }}
- name: loraplane-signature-keys
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $s.signaturePolicyConfigMapName }}
- name: loraplane-signature-policy
  configMap: {name: {{ . }}, defaultMode: 0444}
{{- end }}
{{- with $s.http.tlsSecretName }}
- name: loraplane-http-tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with $s.http.tokenSecretName }}
- name: loraplane-http-token
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.engine.apiKeySecretName }}
- name: loraplane-engine-key
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{/* Variables of the engine. VLLM_API_KEY only where a Secret has the key. */}}
{{- define "loraplane.engineEnv" -}}
# Without it vLLM has no routes to load and unload adapters.
- {name: VLLM_ALLOW_RUNTIME_LORA_UPDATING, value: "1"}
{{- if ne .Values.plugin.source "none" }}
- {name: PYTHONPATH, value: {{ include "loraplane.pluginPath" . }}}
- {name: VLLM_PLUGINS, value: loraplane}
- {name: LORAPLANE_PLUGIN, value: "1"}
{{- end }}
# Of the image's own plugin too, if it has one. The plugin swaps to nothing else.
- {name: LORAPLANE_STORE, value: {{ .Values.sidecar.store.path }}}
- {name: LORAPLANE_RESOLVER, value: /run/loraplane/resolver.sock}
{{- if .Values.sidecar.controlTokenSecretName }}
- {name: LORAPLANE_CONTROL_TOKEN_FILE, value: /run/secrets/loraplane/control/token}
{{- end }}
{{- with .Values.engine.apiKeySecretName }}
- name: VLLM_API_KEY
  valueFrom: {secretKeyRef: {name: {{ . }}, key: key}}
{{- end }}
{{- end }}

{{/* An image's volume has the image's own folders. */}}
{{- define "loraplane.pluginPath" -}}
{{- if eq .Values.plugin.source "imageVolume" }}/run/loraplane-plugin{{ end }}{{ .Values.plugin.path }}
{{- end }}

{{- define "loraplane.engineMounts" -}}
# The same path as in the sidecar: the engine opens files by the path that the sidecar gives it.
- {name: loraplane-store, mountPath: {{ dir .Values.sidecar.store.path }}, readOnly: true}
- {name: loraplane-sockets, mountPath: /run/loraplane, readOnly: true}
{{- if eq .Values.plugin.source "initContainer" }}
- {name: loraplane-plugin, mountPath: {{ .Values.plugin.path }}, readOnly: true}
{{- else if eq .Values.plugin.source "imageVolume" }}
- {name: loraplane-plugin, mountPath: /run/loraplane-plugin, readOnly: true}
{{- end }}
{{- if .Values.sidecar.controlTokenSecretName }}
- {name: loraplane-control, mountPath: /run/secrets/loraplane/control, readOnly: true}
{{- end }}
{{- end }}

{{/* Probes and the hook of the engine's container. */}}
{{- define "loraplane.engineProbes" -}}
startupProbe:
  httpGet: {path: /health, port: {{ .Values.engine.port }}}
  periodSeconds: 1
  failureThreshold: {{ .Values.engine.startSeconds }}
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /health, port: {{ .Values.engine.port }}}
  periodSeconds: 5
  failureThreshold: 6
  timeoutSeconds: 5
# The sidecar's port: the kubelet asks the pod's address, and /readyz is about the replica. Three times, so that a sidecar that is
# started again (four seconds) does not take an engine that serves out of its Service.
readinessProbe:
  httpGet: {path: /readyz, port: 7602{{ include "loraplane.scheme" .Values.sidecar.http }}}
  periodSeconds: 2
  failureThreshold: 3
  timeoutSeconds: 3
# SIGTERM comes after the hook: others take over, routers notice, requests end.
lifecycle:
  preStop:
    exec:
      command:
        - python3
        - -c
        - |
          {{- include "loraplane.drainScript" (dict "root" . "wait" .Values.sidecar.handOverSeconds) | nindent 10 }}
          {{- include "loraplane.finishScript" . | nindent 10 }}
{{- end }}

{{/*
Begins the drain, and waits so long for others to take over. What fails keeps nobody from the rest of the hook. An answer is empty where
none came, and None where nobody listens.
*/}}
{{- define "loraplane.drainScript" -}}
import re, ssl, time, urllib.request as r
{{- if .root.Values.sidecar.controlTokenSecretName }}
token = open('/run/secrets/loraplane/control/token').read().strip()
{{- else }}
token = 'preStop'
{{- end }}
def get(url, seconds):
    try:
        request = r.Request(url, headers={'x-loraplane-control': token})
        # It stays in the pod, whose sidecar may have a certificate for its port.
        plain = ssl._create_unverified_context()
        return r.urlopen(request, timeout=seconds, context=plain).read().decode()
    except OSError as error:
        print(url, error)
        return None if isinstance(getattr(error, 'reason', error), ConnectionRefusedError) else ''
get('{{ if .root.Values.sidecar.http.tlsSecretName }}https{{ else }}http{{ end }}://127.0.0.1:7602/drain?wait={{ .wait }}', {{ add .wait 5 }})
{{- end }}

{{/* Waits until routers have noticed, and then until no request runs. An engine that is late with its answer may have some. */}}
{{- define "loraplane.finishScript" -}}
time.sleep({{ .Values.engine.routerSeconds }})
end = time.monotonic() + {{ .Values.engine.requestSeconds }}
busy = re.compile(r'^vllm:num_requests_(?:running|waiting)(?:{.*})? (?!0(?:\.0)?$)', re.M)
while time.monotonic() < end:
    page = get('http://127.0.0.1:{{ .Values.engine.port }}/metrics', 5)
    if page is None or (page and not busy.search(page)):
        break
    time.sleep(1)
{{- end }}

{{/*
terminationGracePeriodSeconds, the sum of the steps of an end:
    sidecar.handOverSeconds + 5   others load what only this replica serves; the hook's own call gives up 5 s later
    engine.routerSeconds          routers and Services notice
    engine.requestSeconds         requests on their way end
    15                            SIGTERM: the engine ends, then the sidecar, which has handed over by then
*/}}
{{- define "loraplane.graceSeconds" -}}
{{- add .Values.sidecar.handOverSeconds 5 .Values.engine.routerSeconds .Values.engine.requestSeconds 15 -}}
{{- end }}

{{/* Files of all volumes get the group 10001, by which the engine reads what the sidecar writes. */}}
{{- define "loraplane.podSecurity" -}}
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
runAsGroup: 10001
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}
