package io.djltp.internal.libtorch;

import ai.djl.pytorch.jni.LibUtils;
import ai.djl.util.Utils;

import io.djltp.collective.ForkedJvm;

import org.testng.Assert;
import org.testng.SkipException;
import org.testng.annotations.AfterMethod;
import org.testng.annotations.BeforeMethod;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;

/** Binding the preset leaves JavaCPP's cache, which all processes share, without DJL's files. */
public class PresetLibrariesTest {

    private static final List<String> LIBTORCH = List.of("c10", "torch", "torch_cpu");

    private Path folder;

    @BeforeMethod
    public void prepare() throws IOException {
        if (!System.getProperty("os.name").equals("Linux")) {
            throw new SkipException("the links of macOS are needed");
        }
        folder = Files.createTempDirectory("preset");
        LibTorch.load();
    }

    @AfterMethod(alwaysRun = true)
    public void delete() {
        Utils.deleteQuietly(folder);
    }

    @Test(timeOut = 90_000)
    public void theCacheGetsNoLinksToDjlsLibraries() throws Exception {
        run(new ForkedJvm().asUsual().option("-Dorg.bytedeco.javacpp.cachedir=" + folder));
        Path djl = Path.of(LibUtils.getLibtorchPath());
        try (Stream<Path> files = Files.walk(folder)) {
            for (Path file : files.toList()) {
                String name = file.getFileName().toString();
                Assert.assertFalse(
                        LIBTORCH.stream().anyMatch(n -> name.equals(System.mapLibraryName(n))),
                        file + " is in the cache");
                Assert.assertFalse(
                        Files.isSymbolicLink(file) && Files.readSymbolicLink(file).startsWith(djl),
                        file + " is a link to DJL's files");
            }
        }
        Assert.assertTrue(Files.exists(folder.resolve(".lock")), "the cache was used");
    }

    /** As earlier versions of this library have left them, and other programs may. */
    @Test(timeOut = 90_000)
    public void linksThatAreThereAreNotWrittenThrough() throws Exception {
        String preset = "pytorch-2.7.1-1.5.12-" + org.bytedeco.javacpp.Loader.getPlatform();
        Path place =
                folder.resolve(preset + ".jar/org/bytedeco/pytorch")
                        .resolve(org.bytedeco.javacpp.Loader.getPlatform());
        Files.createDirectories(place);
        for (String name : LIBTORCH) {
            Path target = Files.writeString(folder.resolve(name), "of another process");
            Files.createSymbolicLink(place.resolve(System.mapLibraryName(name)), target);
        }
        run(new ForkedJvm().asUsual().option("-Dorg.bytedeco.javacpp.cachedir=" + folder));
        Assert.assertTrue(Files.exists(place.resolve(System.mapLibraryName("jnitorch"))));
        for (String name : LIBTORCH) {
            Assert.assertEquals(Files.readString(folder.resolve(name)), "of another process");
        }
    }

    /** Four processes at once, an empty cache of JavaCPP's, and two caches of DJL's. */
    @Test(timeOut = 180_000)
    public void processesWithTwoCachesOfDjlsDoNotMeet() throws Exception {
        Path own = Path.of(LibUtils.getLibtorchPath());
        List<Path> copies = List.of(copy(own, "first", null), copy(own, "second", "first"));
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try {
            for (int round = 0; round < 2; round++) {
                Path home = Files.createDirectory(folder.resolve("home" + round));
                List<Future<?>> processes = new ArrayList<>();
                for (int i = 0; i < 4; i++) {
                    Path cache = folder.resolve(i % 2 == 0 ? "first" : "second");
                    ForkedJvm jvm =
                            new ForkedJvm()
                                    .asUsual()
                                    .option("-Duser.home=" + home)
                                    .option("-Xmx300m")
                                    .environment("DJL_CACHE_DIR", cache.toString());
                    processes.add(
                            threads.submit(
                                    () -> {
                                        run(jvm);
                                        return null;
                                    }));
                }
                for (Future<?> process : processes) {
                    process.get();
                }
                for (Path copy : copies) {
                    assertSame(copy, own);
                }
            }
        } finally {
            threads.shutdown();
        }
    }

    /** A cache of DJL's with copies of its files; the largest is copied once, for time. */
    private Path copy(Path own, String name, String like) throws IOException {
        Path copy = folder.resolve(name).resolve("pytorch").resolve(own.getFileName());
        Files.createDirectories(copy);
        try (Stream<Path> files = Files.list(own)) {
            for (Path file : files.toList()) {
                Path target = copy.resolve(file.getFileName());
                if (like != null && Files.size(file) > 100 << 20) {
                    Path other = folder.resolve(like).resolve("pytorch");
                    Files.createLink(
                            target, other.resolve(own.getFileName()).resolve(file.getFileName()));
                } else {
                    Files.copy(file, target);
                }
            }
        }
        return copy;
    }

    private static void assertSame(Path copy, Path own) throws IOException {
        for (String name : LIBTORCH) {
            Path file = Path.of(System.mapLibraryName(name));
            Assert.assertEquals(
                    Files.size(copy.resolve(file)), Files.size(own.resolve(file)), name);
            if (Files.size(own.resolve(file)) < 10 << 20) {
                Assert.assertTrue(
                        Arrays.equals(
                                Files.readAllBytes(copy.resolve(file)),
                                Files.readAllBytes(own.resolve(file))),
                        name);
            }
        }
    }

    private static void run(ForkedJvm jvm) throws IOException, InterruptedException {
        String output = jvm.succeed(LibTorchProbe.class, "load");
        Assert.assertTrue(output.contains("sum=12.0"), output);
    }
}
