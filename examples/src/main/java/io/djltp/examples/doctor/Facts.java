package io.djltp.examples.doctor;

import ai.djl.Device;
import ai.djl.engine.Engine;

import io.djltp.environment.LaunchEnvironment;
import io.djltp.internal.collective.nccl.NcclLibrary;
import io.djltp.internal.libtorch.LibTorch;
import io.djltp.internal.libtorch.ProcessorArithmetic;
import io.djltp.internal.report.SystemMemory;
import io.djltp.internal.torch.Autograd;
import io.djltp.internal.torch.OneDnnLinear;
import io.djltp.launch.Launcher;
import io.djltp.llm.WeightType;
import io.djltp.torch.Precision;

import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** What this machine and this process have. */
final class Facts {

    final Map<String, String> values = new LinkedHashMap<>();

    /** Looks at everything; nothing here fails because something is missing. */
    Facts() {
        values.put("system", property("os.name") + " " + property("os.arch"));
        values.put("processors", "" + Runtime.getRuntime().availableProcessors());
        SystemMemory.available()
                .ifPresent(
                        bytes ->
                                values.put(
                                        "memory available",
                                        String.format(
                                                Locale.ROOT,
                                                "%.1f GiB",
                                                bytes / (double) (1L << 30))));
        values.put("java", property("java.version") + " " + property("java.vm.name"));
        Engine engine = LibTorch.load();
        values.put("engine", "DJL " + Engine.getDjlVersion() + ", " + engine.getEngineName());
        values.put("libtorch", engine.getVersion() + ", one copy, bound by JavaCPP");
        values.put("threads an operation", "" + Autograd.getThreads());
        values.put("precisions", precisions());
        values.put("large products", OneDnnLinear.isUsed() ? "oneDNN, in layers" : "libtorch's");
        if (ProcessorArithmetic.hasWrongConvolutions()) {
            values.put(
                    "convolutions, LSTMs",
                    "WRONG, in DJL alone too: this machine hides the sizes of its caches from"
                            + " oneDNN 3.7");
        }
        for (WeightType type : WeightType.values()) {
            values.put("generation, " + type, type.getKernel());
        }
        values.put("gpus", gpus());
        values.put("nccl", NcclLibrary.whyNot().map(why -> "no: " + why).orElseGet(Facts::nccl));
        values.put("launcher", launcher());
    }

    private static String property(String name) {
        return System.getProperty(name);
    }

    private static String gpus() {
        if (NcclLibrary.whyNot().isPresent()) {
            return "" + Engine.getInstance().getGpuCount();
        }
        return IntStream.range(0, NcclLibrary.deviceCount())
                .mapToObj(NcclLibrary::deviceName)
                .collect(Collectors.joining(", "));
    }

    /** Of the first device, which is that of rank 0. */
    private static String precisions() {
        Device device = LibTorch.load().defaultDevice();
        String has =
                Precision.available(device).stream()
                        .map(Precision::toString)
                        .collect(Collectors.joining(", "));
        return Precision.BFLOAT16.whyNot(device).map(why -> has + "; bfloat16 " + why).orElse(has);
    }

    private static String nccl() {
        return NcclLibrary.version()
                + ", CUDA runtime "
                + NcclLibrary.runtimeVersion()
                + ", driver "
                + NcclLibrary.driverVersion();
    }

    private static String launcher() {
        Map<String, String> environment = System.getenv();
        if (Launcher.processes(environment) == 1) {
            return "none: all ranks are in this process";
        }
        Optional<LaunchEnvironment> found = LaunchEnvironment.detect(environment);
        return found.map(e -> e.launcher() + ", " + e.processes() + " processes").orElse("none");
    }

    void print(PrintStream out) {
        values.forEach((name, value) -> out.printf("%-22s %s%n", name, value));
    }
}
