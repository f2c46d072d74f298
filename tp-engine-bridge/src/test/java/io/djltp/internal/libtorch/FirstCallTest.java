package io.djltp.internal.libtorch;

import io.djltp.collective.ForkedJvm;
import io.djltp.internal.update.EmbeddingBags;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.Test;

import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Whichever public class a program uses first, the process gets one libtorch, that of DJL. The
 * first object of the preset that is made before the binding loads another one, and the JVM ends.
 */
public class FirstCallTest {

    private static final String PRESET = "org/bytedeco/pytorch/";

    private static ClassFiles classes() throws Exception {
        return new ClassFiles(folder());
    }

    private static Path folder() throws URISyntaxException {
        Path place =
                Path.of(LibTorch.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        if (!Files.isDirectory(place)) {
            throw new SkipException("the classes are in " + place);
        }
        return place;
    }

    /** A JVM for each public class that touches the preset, itself or by what lies behind it. */
    @Test(groups = "sweep", timeOut = 300_000)
    public void everyPublicClassMayBeTheFirst() throws Exception {
        Set<String> names = classes().publicClassesThatReach(PRESET);
        Assert.assertTrue(names.contains(EmbeddingBags.class.getName()), "" + names);
        mayBeTheFirst(names);
    }

    @Test(timeOut = 300_000)
    public void aClassOfEachPackageMayBeTheFirst() throws Exception {
        Map<String, String> ofPackages = new TreeMap<>();
        for (String name : classes().publicClassesThatReach(PRESET)) {
            ofPackages.put(name.substring(0, name.lastIndexOf('.')), name);
        }
        Assert.assertTrue(ofPackages.size() > 3, "" + ofPackages);
        mayBeTheFirst(ofPackages.values());
    }

    private static void mayBeTheFirst(Collection<String> names) throws Exception {
        ExecutorService two = Executors.newFixedThreadPool(2);
        try {
            Map<String, Future<ForkedJvm.Result>> results = new TreeMap<>();
            for (String name : names) {
                results.put(name, two.submit(() -> jvm().run(FirstCallProbe.class, name)));
            }
            for (Map.Entry<String, Future<ForkedJvm.Result>> entry : results.entrySet()) {
                ForkedJvm.Result result = entry.getValue().get();
                Assert.assertEquals(result.exitCode(), 0, entry.getKey() + ": " + result.output());
                if (Files.isReadable(Path.of("/proc/self/maps"))) {
                    Assert.assertTrue(
                            result.output().endsWith("libraries=2\n"),
                            entry.getKey() + ": " + result.output());
                }
            }
        } finally {
            two.shutdown();
        }
    }

    /** Without OpenBLAS, which is no part of this: its search is a tenth of the start. */
    private static ForkedJvm jvm() {
        ForkedJvm jvm = new ForkedJvm();
        return Files.isReadable(Path.of("/proc/self/maps"))
                ? jvm.option("-Dorg.bytedeco.openblas.load=none")
                : jvm;
    }

    /** Public methods open a {@link TorchScope}, or another that loads libtorch, for a guard. */
    @Test
    public void publicClassesMakeNoGuardsThemselves() throws Exception {
        for (String guard : new String[] {"NoGradGuard", "Context"}) {
            Set<String> users = new TreeSet<>(classes().publicClassesThatUse(PRESET + guard));
            users.remove("io/djltp/internal/torch/TorchScope");
            users.remove("io/djltp/internal/torch/FlushDenormals");
            users.remove("io/djltp/torch/Float32Products"); // loads libtorch itself
            Assert.assertEquals(users, Set.of(), guard);
        }
    }
}
