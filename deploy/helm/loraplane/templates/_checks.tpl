{{/* What a schema cannot say: each names the value and the remedy. */}}
{{- define "loraplane.checkEtcd" -}}
{{- $v := .Values -}}
{{- if and $v.etcd.single.enabled $v.etcd.endpoints -}}
{{- fail "etcd.single.enabled and etcd.endpoints name two etcds: give one of them" -}}
{{- end -}}
{{- if and $v.etcd.single.enabled (not $v.insecure) -}}
{{- fail "etcd.single has no TLS and one member, for trials: give insecure: true, or etcd.endpoints of a cluster (deploy/examples/etcd has one)" -}}
{{- end -}}
{{- if not (or $v.etcd.single.enabled $v.etcd.endpoints) -}}
{{- fail "etcd.endpoints is empty: give HOST:PORT of each member of etcd, or etcd.single.enabled: true with insecure: true for a trial" -}}
{{- end -}}
{{- if not (or $v.insecure $v.etcd.tlsSecretName) -}}
{{- fail "etcd.tlsSecretName is empty: name a Secret with ca.crt, tls.crt and tls.key, or give insecure: true where the network may be trusted" -}}
{{- end -}}
{{- range list (list "etcd" $v.etcd) (list "sidecar.etcd" $v.sidecar.etcd) -}}
{{- $one := last . -}}
{{- if and $one.user (not (or $one.passwordSecretName $v.etcd.passwordSecretName)) -}}
{{- fail (printf "%s.user needs %s.passwordSecretName, a Secret with its password under the key `password`" (first .) (first .)) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "loraplane.checkAdmin" -}}
{{- $admin := .Values.admin -}}
{{- if and $admin.access.secretName $admin.access.policy -}}
{{- fail "admin.access.secretName and admin.access.policy are two access files: give one of them" -}}
{{- end -}}
{{- if not .Values.insecure -}}
{{- if not $admin.tlsSecretName -}}
{{- fail "admin.tlsSecretName is empty: name a Secret with tls.crt, tls.key and ca.crt, or give insecure: true where the network may be trusted" -}}
{{- end -}}
{{- if not (or $admin.access.secretName $admin.access.policy) -}}
{{- fail "admin.access is empty: whoever reaches the API could change everything. Give admin.access.policy or admin.access.secretName (docs/security.md), or insecure: true" -}}
{{- end -}}
{{- end -}}
{{- if and $admin.tokens (not $admin.tlsSecretName) -}}
{{- fail "admin.tokens needs admin.tlsSecretName, since others could read the tokens" -}}
{{- end -}}
{{- if and $admin.tokens (not (or $admin.access.secretName $admin.access.policy)) -}}
{{- fail "admin.tokens needs admin.access, by which callers are known: give admin.access.policy or admin.access.secretName" -}}
{{- end -}}
{{- $monitor := .Values.monitoring.serviceMonitor -}}
{{- if and $monitor.enabled (or $admin.access.secretName $admin.access.policy) (not (and $admin.http.tlsSecretName $monitor.tokenSecret.name)) -}}
{{- fail "monitoring.serviceMonitor needs admin.http.tlsSecretName and monitoring.serviceMonitor.tokenSecret: with an access file the pages ask for a token, over TLS alone" -}}
{{- end -}}
{{- end }}

{{- define "loraplane.checkSidecar" -}}
{{- $v := .Values -}}
{{- if and (not $v.insecure) (not $v.sidecar.controlTokenSecretName) (ne $v.plugin.source "none") -}}
{{- fail "sidecar.controlTokenSecretName is empty: whoever reaches the engine could swap adapters. Name a Secret with a token under the key `token`, or give insecure: true" -}}
{{- end -}}
{{- if and $v.sidecar.http.tokenSecretName (not $v.sidecar.http.tlsSecretName) -}}
{{- fail "sidecar.http.tokenSecretName needs sidecar.http.tlsSecretName, since others could read the token" -}}
{{- end -}}
{{- if and $v.sidecar.store.hostPath $v.sidecar.store.claim.size -}}
{{- fail "sidecar.store.hostPath and sidecar.store.claim are two stores: give one of them" -}}
{{- end -}}
{{- end }}

{{- define "loraplane.checkReplicas" -}}
{{- $monitor := .Values.monitoring.podMonitor -}}
{{- $http := .Values.sidecar.http -}}
{{- if and $monitor.enabled (not .Values.insecure) (not $http.tlsSecretName) -}}
{{- fail "monitoring.podMonitor needs sidecar.http.tlsSecretName: a sidecar's pages answer other hosts over TLS alone, with a certificate or a token" -}}
{{- end -}}
{{- if and $monitor.enabled $http.tlsSecretName (not (or $http.tokenSecretName $monitor.certificateSecretName)) -}}
{{- fail "monitoring.podMonitor needs sidecar.http.tokenSecretName or monitoring.podMonitor.certificateSecretName: a sidecar's pages ask other hosts for either" -}}
{{- end -}}
{{- if and .Values.sidecar.store.claim.size (ne .Values.replicas.kind "StatefulSet") -}}
{{- fail "sidecar.store.claim needs replicas.kind: StatefulSet, whose pods have a claim each" -}}
{{- end -}}
{{- end }}

{{- define "loraplane.checkPicker" -}}
{{- $v := .Values -}}
{{- $p := $v.picker -}}
{{- if not (or $p.admin $v.admin.enabled) -}}
{{- fail "picker.admin is empty, and admin.enabled is false: give HOST:PORT of the admin service" -}}
{{- end -}}
{{- if and $p.tokenSecretName (not $p.adminTlsSecretName) -}}
{{- fail "picker.tokenSecretName needs picker.adminTlsSecretName, since others could read the token" -}}
{{- end -}}
{{- if and $p.tokenSecretName (not $p.admin) (not $v.admin.tokens) -}}
{{- fail "picker.tokenSecretName needs admin.tokens: true, as the release's admin service takes certificates alone at its other port" -}}
{{- end -}}
{{- if and $p.askGateways (not $p.tlsSecretName) -}}
{{- fail "picker.askGateways needs picker.tlsSecretName, a Secret with tls.crt, tls.key and ca.crt" -}}
{{- end -}}
{{- if not $v.insecure -}}
{{- if not $p.tlsSecretName -}}
{{- fail "picker.tlsSecretName is empty: others could read requests. Name a Secret with tls.crt and tls.key, or give insecure: true" -}}
{{- end -}}
{{- if not $p.http.tlsSecretName -}}
{{- fail "picker.http.tlsSecretName is empty: name a Secret with tls.crt, tls.key and ca.crt, or give insecure: true" -}}
{{- end -}}
{{- if not $p.adminTlsSecretName -}}
{{- fail "picker.adminTlsSecretName is empty: name a Secret with the admin service's ca.crt, and tls.crt with tls.key or picker.tokenSecretName" -}}
{{- end -}}
{{- end -}}
{{- if and $v.monitoring.podMonitor.enabled $p.http.tlsSecretName (not $v.monitoring.podMonitor.certificateSecretName) -}}
{{- fail "monitoring.podMonitor needs monitoring.podMonitor.certificateSecretName: pickers' metrics ask for a certificate of the ca.crt of picker.http.tlsSecretName" -}}
{{- end -}}
{{- end }}
