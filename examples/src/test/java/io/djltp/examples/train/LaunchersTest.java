package io.djltp.examples.train;

import io.djltp.examples.ForkedTp;
import io.djltp.examples.JobVariables;
import io.djltp.examples.clusters.Torchrun;
import io.djltp.testing.TestFolder;

import org.testng.Assert;
import org.testng.annotations.Test;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** {@code tp train} as torchrun starts it: the real one where there is one, and one played here. */
public class LaunchersTest {

    private final Path folder = TestFolder.create();

    /**
     * The agent holds the port and sets the variables, as that of torchrun does without options.
     */
    @Test(timeOut = 480_000)
    public void theAgentListensAtMasterPort() throws Exception {
        List<Map<String, String>> environments = new ArrayList<>();
        try (ServerSocket agent = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            for (int i = 0; i < 2; i++) {
                Map<String, String> variables =
                        new HashMap<>(JobVariables.of(i, 2, agent.getLocalPort()));
                variables.put("LOCAL_RANK", "" + i);
                variables.put("LOCAL_WORLD_SIZE", "2");
                variables.put("GROUP_WORLD_SIZE", "1");
                variables.put("TORCHELASTIC_RUN_ID", "none");
                variables.put("TORCHELASTIC_RESTART_COUNT", "0");
                variables.put("TORCHELASTIC_USE_AGENT_STORE", "True");
                environments.add(variables);
            }
            for (ForkedTp.Result result : ForkedTp.job(environments, i -> arguments("agent"))) {
                Assert.assertEquals(result.status(), 0, result.toString());
            }
        }
    }

    /** The static rendezvous, and c10d with an endpoint: clusters.ScriptsTest. */
    @Test(timeOut = 480_000)
    public void torchrunStandalone() throws Exception {
        Torchrun.skipWithout();
        List<String> command = new ArrayList<>(List.of(Torchrun.COMMAND.split(" ")));
        command.addAll(List.of("--no_python", "-r", "1", "-t", "1", "--nproc_per_node", "2"));
        command.add("--standalone");
        command.addAll(ForkedTp.command());
        command.addAll(List.of(arguments("standalone").split(" ")));
        try (ForkedTp torchrun = ForkedTp.script(command, Map.of())) {
            ForkedTp.Result result = torchrun.await();
            Assert.assertEquals(result.status(), 0, result.toString());
            Assert.assertTrue(result.out().contains("The model is saved"), result.toString());
        }
    }

    private String arguments(String name) {
        return "train --tp 2 --steps 2 --dim 8 --batch 32 --seed 7 --timeout 60"
                + " --out "
                + folder.resolve(name);
    }
}
