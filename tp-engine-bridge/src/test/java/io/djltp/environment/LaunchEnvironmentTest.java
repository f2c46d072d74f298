package io.djltp.environment;

import io.djltp.testing.Refusals;

import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** What torchrun, Open MPI and Slurm set is read, and what is wrong in it is said. */
public class LaunchEnvironmentTest {

    @DataProvider
    static Object[][] wellFormed() {
        return new Object[][] {
            {"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=7", "torchrun 1 4 1 a 7"},
            {"RANK=3 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=65535", "torchrun 3 4 0 a 65535"},
            {"RANK=0 WORLD_SIZE=1", "torchrun 0 1 0 null 0"},
            {
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=7 SLURM_PROCID=5 SLURM_NTASKS=9"
                        + " OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3",
                "torchrun 1 2 0 a 7"
            },
            {
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_LOCAL_RANK=1"
                        + " OMPI_COMM_WORLD_LOCAL_SIZE=3 PMIX_NAMESPACE=1256652801"
                        + " SLURM_PROCID=0 SLURM_NTASKS=1",
                "Open MPI 1 3 1 127.0.0.1 20266"
            },
            {
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=3 MASTER_ADDR=m MASTER_PORT=80",
                "Open MPI 1 3 0 m 80"
            },
            {
                "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=41234"
                        + " SLURM_STEP_NODELIST=gpu[003-007,12],cpu1 SLURM_NODELIST=x",
                "Slurm 2 4 1 gpu003 21234"
            },
            {"SLURM_PROCID=0 SLURM_NTASKS=1 SLURM_NODELIST=n1,n2", "Slurm 0 1 0 n1 0"},
            {"SLURM_PROCID=0 SLURM_NTASKS=1", "Slurm 0 1 0 null 0"},
            {
                "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_JOB_NODELIST=r[0-3]n[1,4]-ib"
                        + " SLURM_JOB_ID=7 MASTER_PORT=99",
                "Slurm 1 2 0 r0n1-ib 99"
            },
            {
                "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_NODELIST=n SLURM_JOB_ID=7 MASTER_ADDR=m",
                "Slurm 1 2 0 m 20007"
            },
            {
                "JOB_COMPLETION_INDEX=3 WORLD_SIZE=4 MASTER_ADDR=train-0.train",
                "Kubernetes 3 4 0 train-0.train 29500"
            },
            {
                "JOB_COMPLETION_INDEX=0 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=7",
                "Kubernetes 0 4 0 a 7"
            },
            {"JOB_COMPLETION_INDEX=0 WORLD_SIZE=1", "Kubernetes 0 1 0 null 29500"},
            {
                "JOB_COMPLETION_INDEX=3 RANK=1 WORLD_SIZE=4 MASTER_ADDR=a MASTER_PORT=7",
                "torchrun 1 4 0 a 7"
            },
        };
    }

    /** What runs in an allocation or a pod is not yet a process of a job. */
    @DataProvider
    static Object[][] alone() {
        return new Object[][] {
            {"JOB_COMPLETION_INDEX=3"}, // pods that have nothing to do with each other
            {""},
            {"MASTER_ADDR=a MASTER_PORT=7"},
            {"LOCAL_RANK=0"},
            {"SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_JOB_NODELIST=n1"}, // salloc
            {"SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_JOB_NODELIST=n[1-4]"},
            {"SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0"}, // the script of sbatch
            {"SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967291"}, // the same
            {"SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 SLURM_STEP_ID=4294967290"}, // its shell
        };
    }

    @Test(dataProvider = "alone", timeOut = 10_000)
    public void nothingWasLaunched(String variables) {
        Assert.assertEquals(LaunchEnvironment.detect(parse(variables)), Optional.empty());
    }

    @Test(dataProvider = "wellFormed", timeOut = 10_000)
    public void itIsRead(String variables, String expected) {
        LaunchEnvironment found = LaunchEnvironment.detect(parse(variables)).orElseThrow();
        Assert.assertEquals(
                "%s %d %d %d %s %d"
                        .formatted(
                                found.launcher(),
                                found.process(),
                                found.processes(),
                                found.localProcess(),
                                found.masterAddress(),
                                found.masterPort()),
                expected);
    }

    /**
     * The agent of torchrun and the steps of a Slurm job: where to meet, and what tells runs apart.
     */
    @DataProvider
    static Object[][] runs() {
        String torch =
                "RANK=1 WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none"
                        + " TORCHELASTIC_RESTART_COUNT=2";
        String slurm = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NODELIST=n1 SLURM_JOB_ID=7";
        return new Object[][] {
            {"RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=7", "h 7 ''"},
            {torch, "h 29500 'torchrun none 29500'"},
            {torch + " LOCAL_WORLD_SIZE=2", "h 29500 'torchrun none 29500'"},
            {
                torch + " LOCAL_WORLD_SIZE=4 GROUP_WORLD_SIZE=1",
                "127.0.0.1 29500 'torchrun none 29500 2'"
            },
            {torch + " TORCHELASTIC_USE_AGENT_STORE=False", "h 29500 'torchrun none 29500'"},
            {torch + " TORCHELASTIC_USE_AGENT_STORE=True", "h 23288 'torchrun none 29500'"},
            {
                torch + " TORCHELASTIC_USE_AGENT_STORE=True GROUP_WORLD_SIZE=1",
                "h 26881 'torchrun none 29500 2'"
            },
            {slurm + " SLURM_STEP_ID=3", "n1 20007 'Slurm 7.3'"},
            {slurm + " SLURM_STEP_ID=3 SLURM_RESTART_COUNT=2", "n1 20007 'Slurm 7.3 2'"},
            {slurm + " SLURM_STEP_ID=3 TP_MASTER_PORT=99", "n1 99 ''"},
            {torch + " TORCHELASTIC_USE_AGENT_STORE=True TP_MASTER_PORT=99", "h 99 ''"},
            {slurm + " SLURM_STEP_ID=3 MASTER_PORT=99", "n1 99 ''"},
            {slurm + " SLURM_STEP_ID=3 SLURM_STEP_NUM_NODES=2", "n1 20007 'Slurm 7.3'"},
            {slurm + " SLURM_STEP_ID=3 SLURM_STEP_NUM_NODES=1", "127.0.0.1 20007 'Slurm 7.3'"},
            {slurm + " SLURM_STEP_NUM_NODES=1 MASTER_ADDR=m MASTER_PORT=99", "m 99 ''"},
        };
    }

    @Test(dataProvider = "runs", timeOut = 10_000)
    public void aRunHasAPlaceOfItsOwn(String variables, String expected) {
        LaunchEnvironment found = LaunchEnvironment.detect(parse(variables)).orElseThrow();
        String place = found.masterAddress() + " " + found.masterPort() + " '" + found.run() + "'";
        Assert.assertEquals(place, expected);
    }

    @Test(timeOut = 10_000)
    public void aRunHasSeveralPortsThatAllOfItsProcessesKnow() {
        LaunchEnvironment named =
                new LaunchEnvironment("torchrun", 1, 2, 0, "h", 29_500, "torchrun none 29500");
        LaunchEnvironment master =
                new LaunchEnvironment("torchrun", 0, 2, 0, "h", 29_500, "torchrun none 29500");
        List<Integer> ports = MasterPort.candidates(named);
        // the numbers do not depend on the version of Java, which may differ between machines
        Assert.assertEquals(ports, List.of(29_500, 23_288, 22_718, 29_760, 25_792));
        Assert.assertEquals(MasterPort.candidates(master), ports);
        LaunchEnvironment unnamed = new LaunchEnvironment("torchrun", 1, 2, 0, "h", 29_500);
        Assert.assertEquals(MasterPort.candidates(unnamed), List.of(29_500));
    }

    @DataProvider
    static Object[][] malformed() {
        String master = " MASTER_ADDR=a MASTER_PORT=7";
        String slurm = "SLURM_PROCID=1 SLURM_NTASKS=2";
        return new Object[][] {
            {"RANK=0", "WORLD_SIZE is not set although RANK=0: set it to the number of processes"},
            {"WORLD_SIZE=2", "RANK is not set although WORLD_SIZE=2: set it"},
            {
                "RANK=2 WORLD_SIZE=2" + master,
                "RANK is '2': set it to a number from 0 to 1, because"
            },
            {"RANK=-1 WORLD_SIZE=2" + master, "RANK is '-1': set it to a number from 0 to 1"},
            {"RANK=x WORLD_SIZE=2" + master, "RANK is 'x': set it to a number"},
            {"RANK=0 WORLD_SIZE=0" + master, "WORLD_SIZE is '0': set it to a number of processes"},
            {"RANK=0 WORLD_SIZE=two" + master, "WORLD_SIZE is 'two': set it"},
            {"RANK=0 WORLD_SIZE=99999999999" + master, "WORLD_SIZE is '99999999999': set it"},
            {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=-1" + master, "LOCAL_RANK is '-1': set it"},
            {"RANK=0 WORLD_SIZE=2 LOCAL_RANK=x" + master, "LOCAL_RANK is 'x': set it"},
            {"RANK=0 WORLD_SIZE=2 MASTER_PORT=7", "MASTER_ADDR is not set although WORLD_SIZE=2"},
            {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT is not set although WORLD_SIZE=2"},
            {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", "MASTER_PORT is '70000': set"},
            {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=0", "MASTER_PORT is '0': set it to a"},
            {"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=tcp://x", "MASTER_PORT is 'tcp://x'"},
            {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE is not set although"},
            {"OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_RANK is not set although"},
            {
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2"
                        + " PMIX_NAMESPACE=7",
                "MASTER_ADDR is not set although OMPI_COMM_WORLD_SIZE=4: set it to the host of"
                        + " process 0"
            },
            {
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=m",
                "MASTER_PORT is not set although OMPI_COMM_WORLD_SIZE=2"
            },
            {"OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK is '4': set"},
            {"SLURM_PROCID=0", "SLURM_NTASKS is not set although SLURM_PROCID=0"},
            {
                "SLURM_PROCID=2 SLURM_NTASKS=2",
                "SLURM_PROCID is '2': set it to a number from 0 to 1"
            },
            {slurm, "SLURM_STEP_NODELIST is not set although SLURM_NTASKS=2"},
            {
                "JOB_COMPLETION_INDEX=1 WORLD_SIZE=2",
                "MASTER_ADDR is not set although WORLD_SIZE=2: set it to the name of the pod of"
                        + " index 0"
            },
            {
                "JOB_COMPLETION_INDEX=2 WORLD_SIZE=2 MASTER_ADDR=a",
                "JOB_COMPLETION_INDEX is '2': set it to a number from 0 to 1"
            },
            {slurm + " SLURM_STEP_NODELIST=n TP_MASTER_PORT=x", "TP_MASTER_PORT is 'x': set it to"},
            {slurm + " SLURM_NODELIST=gpu[1-3", "SLURM_NODELIST is 'gpu[1-3', which is not a list"},
            {slurm + " SLURM_NODELIST=gpu]", "SLURM_NODELIST is 'gpu]', which is not a list"},
            {slurm + " SLURM_NODELIST=gpu[]", "SLURM_NODELIST is 'gpu[]', which is not a list"},
            {slurm + " SLURM_NODELIST=,gpu", "SLURM_NODELIST is ',gpu', which is not a list"},
            {slurm + " SLURM_NODELIST=n SLURM_JOB_ID=x", "SLURM_JOB_ID is 'x': set it to"},
        };
    }

    @Test(dataProvider = "malformed", timeOut = 10_000)
    public void whatIsWrongIsSaid(String variables, String expected) {
        String said = Refusals.throwsArgument(() -> LaunchEnvironment.detect(parse(variables)));
        Assert.assertTrue(said.startsWith("The environment variable " + expected), said);
    }

    private static Map<String, String> parse(String variables) {
        Map<String, String> map = new HashMap<>();
        for (String variable : variables.split(" ")) {
            if (!variable.isEmpty()) {
                String[] parts = variable.split("=", 2);
                map.put(parts[0], parts[1]);
            }
        }
        return map;
    }
}
