package io.djltp.examples.clusters;

import ai.djl.util.Utils;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.TpRun;
import io.djltp.testing.FreePort;

import org.testng.Assert;
import org.testng.annotations.Test;
import org.yaml.snakeyaml.Yaml;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * The manifest for Kubernetes: every field is one that Kubernetes has, what belongs together is the
 * same, and processes with the variables of its pods train together. No cluster is needed.
 */
public class KubernetesTest {

    private static final Path MANIFEST = Path.of("clusters/kubernetes.yaml");
    private static final String MODELS = "io.kubernetes.client.openapi.models.V1";
    private static final int SERVICE = 0;
    private static final int CLAIM = 1;
    private static final int JOB = 2;

    @Test
    public void everyFieldIsKnownToKubernetes() throws Exception {
        check(Files.readString(MANIFEST));
    }

    @Test
    public void whatBelongsTogetherIsTheSame() throws IOException {
        List<JsonObject> objects = objects(Files.readString(MANIFEST));
        JsonObject spec = objects.get(JOB).getAsJsonObject("spec");
        JsonObject pod = spec.getAsJsonObject("template").getAsJsonObject("spec");
        Map<String, String> variables = variables();
        String name = name(objects.get(JOB));
        Assert.assertEquals(spec.get("completionMode").getAsString(), "Indexed");
        Assert.assertEquals(spec.get("parallelism"), spec.get("completions"));
        Assert.assertEquals(variables.get("WORLD_SIZE"), spec.get("completions").getAsString());
        String service = name(objects.get(SERVICE));
        Assert.assertEquals(pod.get("subdomain").getAsString(), service);
        Assert.assertEquals(variables.get("MASTER_ADDR"), name + "-0." + service);
        JsonObject serviceSpec = objects.get(SERVICE).getAsJsonObject("spec");
        Assert.assertEquals(serviceSpec.get("clusterIP").getAsString(), "None");
        Assert.assertEquals(
                serviceSpec.getAsJsonObject("selector").get("job-name").getAsString(), name);
        JsonObject volume = pod.getAsJsonArray("volumes").get(0).getAsJsonObject();
        String claim =
                volume.getAsJsonObject("persistentVolumeClaim").get("claimName").getAsString();
        Assert.assertEquals(claim, name(objects.get(CLAIM)));
        String policy = spec.getAsJsonObject("podFailurePolicy").toString();
        String named = "\"containerName\":" + container().get("name");
        Assert.assertTrue(policy.contains(named), policy);
        // Kubernetes takes a policy with this alone
        Assert.assertEquals(pod.get("restartPolicy").getAsString(), "Never");
    }

    /** Two processes, which know of each other what a pod of the Job knows. */
    @Test(timeOut = 240_000)
    public void processesWithTheVariablesOfThePodsTrainTogether() throws Exception {
        Path folder = Files.createTempDirectory("tp-pods");
        String arguments =
                "lm --layers 1 --width 8 --heads 2 --context 5 --batch 4 --steps 3 --characters 3";
        Path one = folder.resolve("one.json");
        Path all = folder.resolve("all.json");
        List<ForkedTp> pods = new ArrayList<>();
        try {
            String port = "" + FreePort.find(); // pods have ports of their own
            for (int i = 0; i < 2; i++) {
                Map<String, String> variables = new HashMap<>(variables());
                Assert.assertFalse(variables.containsKey("RANK"));
                variables.put("JOB_COMPLETION_INDEX", "" + i); // set by Kubernetes
                variables.put("WORLD_SIZE", "2");
                variables.put("MASTER_ADDR", "127.0.0.1"); // no names here
                variables.put("MASTER_PORT", port);
                variables.put("TP_SECRET", "of the Secret");
                pods.add(
                        ForkedTp.start(
                                variables, List.of((arguments + " --json " + all).split(" "))));
            }
            for (ForkedTp pod : pods) {
                ForkedTp.Result result = pod.await();
                Assert.assertEquals(result.status(), 0, result.toString());
            }
            TpRun run = TpRun.of((arguments + " --tp 2 --json " + one).split(" "));
            run.assertPrints(0);
            Assert.assertEquals(TpRun.json(all).get("loss"), TpRun.json(one).get("loss"));
        } finally {
            for (ForkedTp pod : pods) {
                pod.close();
            }
            Utils.deleteQuietly(folder);
        }
    }

    /** Returns the variables that the manifest gives a pod, but those that it takes elsewhere. */
    private static Map<String, String> variables() throws IOException {
        Map<String, String> variables = new HashMap<>();
        for (JsonElement each : container().getAsJsonArray("env")) {
            JsonObject variable = each.getAsJsonObject();
            if (variable.has("value")) {
                variables.put(
                        variable.get("name").getAsString(), variable.get("value").getAsString());
            }
        }
        return variables;
    }

    private static JsonObject container() throws IOException {
        JsonObject job = objects(Files.readString(MANIFEST)).get(JOB).getAsJsonObject("spec");
        JsonObject pod = job.getAsJsonObject("template").getAsJsonObject("spec");
        return pod.getAsJsonArray("containers").get(0).getAsJsonObject();
    }

    /** By name, since the compiler would miss annotations of the classes of Kubernetes. */
    private static void check(String manifest) throws ReflectiveOperationException {
        List<String> kinds = new ArrayList<>();
        for (JsonObject object : objects(manifest)) {
            kinds.add(object.get("kind").getAsString());
            String type = MODELS + object.get("kind").getAsString();
            try {
                Class.forName(type)
                        .getMethod("validateJsonElement", JsonElement.class)
                        .invoke(null, object);
            } catch (InvocationTargetException e) {
                throw (RuntimeException) e.getCause();
            }
        }
        Assert.assertEquals(kinds, List.of("Service", "PersistentVolumeClaim", "Job"));
    }

    private static List<JsonObject> objects(String manifest) {
        Gson gson = new Gson();
        List<JsonObject> objects = new ArrayList<>();
        for (Object each : new Yaml().loadAll(manifest)) {
            objects.add(gson.toJsonTree(each).getAsJsonObject());
        }
        return objects;
    }

    private static String name(JsonObject object) {
        return object.getAsJsonObject("metadata").get("name").getAsString();
    }
}
