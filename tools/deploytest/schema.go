package deploytest

import (
	"errors"
	"fmt"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/policy"
	policyvalidation "k8s.io/kubernetes/pkg/apis/policy/validation"
	schedulingapi "k8s.io/kubernetes/pkg/apis/scheduling"
	schedulingvalidation "k8s.io/kubernetes/pkg/apis/scheduling/validation"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	// They enter their defaults in the scheme that objects are decoded with.
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
)

// decode reads one object as the API server does: strictly, so that a field that it
// does not know or that stands twice is an error; with defaults; and with its
// validation, which is applied to its own version of the type.
func decode(document []byte) (runtime.Object, error) {
	strict := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict)
	object, kind, err := strict.UniversalDeserializer().Decode(document, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	legacyscheme.Scheme.Default(object)
	internal, err := legacyscheme.Scheme.ConvertToVersion(object, schema.GroupVersion{Group: kind.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", kind, err)
	}
	problems, err := check(internal)
	if err != nil {
		return nil, err
	}
	if err := problems.ToAggregate(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind.Kind, nameOf(object), err)
	}
	return object, nil
}

func nameOf(object runtime.Object) string {
	if named, is := object.(interface{ GetName() string }); is {
		return named.GetName()
	}
	return "without a name"
}

// check is the API server's validation of a new object.
func check(object runtime.Object) (field.ErrorList, error) {
	switch o := object.(type) {
	case *apps.Deployment:
		return appsvalidation.ValidateDeployment(o, pod.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil)), nil
	case *apps.StatefulSet:
		return appsvalidation.ValidateStatefulSet(o, pod.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil)), nil
	case *batch.Job:
		return batchvalidation.ValidateJob(withSelector(o), batchvalidation.JobValidationOptions{PodValidationOptions: pod.GetValidationOptionsFromPodTemplate(&o.Spec.Template, nil)}), nil
	case *core.Service:
		return corevalidation.ValidateServiceCreate(withAddress(o)), nil
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(o), nil
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(o), nil
	case *core.Namespace:
		return corevalidation.ValidateNamespace(o), nil
	case *core.PersistentVolumeClaim:
		return corevalidation.ValidatePersistentVolumeClaim(o, corevalidation.ValidationOptionsForPersistentVolumeClaimCreate()), nil
	case *policy.PodDisruptionBudget:
		return policyvalidation.ValidatePodDisruptionBudget(o, policyvalidation.PodDisruptionBudgetValidationOptions{}), nil
	case *networking.NetworkPolicy:
		return networkingvalidation.ValidateNetworkPolicy(o, networkingvalidation.NetworkPolicyValidationOptions{}), nil
	case *autoscaling.HorizontalPodAutoscaler:
		return autoscalingvalidation.ValidateHorizontalPodAutoscaler(o, autoscalingvalidation.HorizontalPodAutoscalerSpecValidationOptions{MinReplicasLowerBound: 1}), nil
	case *schedulingapi.PriorityClass:
		return schedulingvalidation.ValidatePriorityClass(o), nil
	}
	return nil, fmt.Errorf("%T is not checked: add it to tools/deploytest", object)
}

// withSelector is a job with one, which the API server gives it before it validates.
func withSelector(j *batch.Job) *batch.Job {
	j = j.DeepCopy()
	manual := true
	j.Spec.ManualSelector, j.Spec.Selector = &manual, &metav1.LabelSelector{MatchLabels: j.Spec.Template.Labels}
	return j
}

// withAddress is a service with what the API server gives it before it validates.
func withAddress(s *core.Service) *core.Service {
	s = s.DeepCopy()
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
	}
	if s.Spec.IPFamilyPolicy == nil {
		single := core.IPFamilyPolicySingleStack
		s.Spec.IPFamilyPolicy = &single
	}
	if len(s.Spec.ClusterIPs) == 0 && s.Spec.ClusterIP != "" {
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	}
	return s
}

// rest keeps what only its name counts of.
func (m *Manifests) rest(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		m.Claims[o.Name] = true
	case *scheduling.PriorityClass:
		m.PriorityClasses[o.Name] = true
	}
}

// ScaledObject is of KEDA (keda.sh/v1alpha1): the fields that deploy/k8s uses, and no
// other, so that a new one is looked up before it is added here.
type ScaledObject struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ScaleTargetRef  autoscalingv2.CrossVersionObjectReference `json:"scaleTargetRef"`
		MinReplicaCount *int32                                    `json:"minReplicaCount"`
		MaxReplicaCount *int32                                    `json:"maxReplicaCount"`
		PollingInterval *int32                                    `json:"pollingInterval"`
		Advanced        struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type       string `json:"type"`
			MetricType string `json:"metricType"`
			// Metadata is the scaler's: strings only.
			Metadata map[string]string `json:"metadata"`
		} `json:"triggers"`
	} `json:"spec"`
}

// PodMonitor is of the Prometheus operator (monitoring.coreos.com/v1), in the same
// way.
type PodMonitor struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Selector            metav1.LabelSelector `json:"selector"`
		PodTargetLabels     []string             `json:"podTargetLabels"`
		PodMetricsEndpoints []struct {
			Port          string `json:"port"`
			Path          string `json:"path"`
			Interval      string `json:"interval"`
			ScrapeTimeout string `json:"scrapeTimeout"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// Certificate is of cert-manager (cert-manager.io/v1), in the same way.
type Certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SecretName  string          `json:"secretName"`
		IsCA        bool            `json:"isCA"`
		CommonName  string          `json:"commonName"`
		URIs        []string        `json:"uris"`
		DNSNames    []string        `json:"dnsNames"`
		IPAddresses []string        `json:"ipAddresses"`
		Duration    metav1.Duration `json:"duration"`
		RenewBefore metav1.Duration `json:"renewBefore"`
		Usages      []string        `json:"usages"`
		PrivateKey  struct {
			Algorithm      string `json:"algorithm"`
			Size           int    `json:"size"`
			RotationPolicy string `json:"rotationPolicy"`
		} `json:"privateKey"`
		IssuerRef struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"issuerRef"`
	} `json:"spec"`
}

// Issuer is of cert-manager as well.
type Issuer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		SelfSigned *struct{} `json:"selfSigned"`
		CA         *struct {
			SecretName string `json:"secretName"`
		} `json:"ca"`
	} `json:"spec"`
}

// put decodes a custom object into its place as the API server would by its schema: an
// unknown field is an error, and so is a number where text has to be.
func put[T any, P interface {
	*T
	GetName() string
}](into map[string]P, document []byte) error {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	object := P(new(T))
	unknown, err := json.UnmarshalStrict(text, object) // the case of names counts, unlike with Go's own
	if err := errors.Join(append(unknown, err)...); err != nil {
		return fmt.Errorf("decode %T: %w", *object, err)
	}
	into[object.GetName()] = object
	return nil
}
