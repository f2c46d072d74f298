package io.djltp.collective;

import static java.util.stream.Collectors.toSet;

import org.testng.IExecutionListener;

import java.io.File;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.zip.ZipFile;

/**
 * An archive of the classes of the jars, already parsed and verified, for the JVMs that tests
 * start: reading 2,000 classes of DJL and of the preset takes a third of the time until the first
 * operation, and 700 of Netty and BouncyCastle half of the time until a job has come together.
 *
 * <p>A listener of the whole run of tests: the first JVM of all makes the archive beside its tests,
 * where the build names a file in {@value #FILE}. The modules share it: nine of ten classes that a
 * started JVM reads are of the JDK, the preset, Netty and BouncyCastle, and to make it takes as
 * long as to start eight JVMs. What the started JVMs are to be given is in {@value #OPTION} as soon
 * as the archive is there: a file of options, which {@link ForkOptions} writes. A JVM that the
 * archive does not fit, because its class path is another, reads its classes as ever and says
 * nothing.
 */
public final class SharedClasses implements IExecutionListener {

    private static final String FILE = "djltp.test.archive";
    private static final String OPTION = "djltp.test.archive.option";

    /** Programs that load what most tests load: the preset's; Netty's and BouncyCastle's. */
    private static final List<String> PROGRAMS =
            List.of(
                    "io.djltp.internal.libtorch.FirstCallProbe io.djltp.internal.update.EmbeddingBags",
                    "io.djltp.job.TwoMembers");

    private static final int MINUTES = 4; // of a machine that has much else to do
    private static final String CLASS_PATH = "java.class.path";
    private static final AtomicBoolean BEGUN = new AtomicBoolean();

    @Override
    public void onExecutionStart() {
        String file = System.getProperty(FILE);
        // surefire may execute each class for itself
        if (file == null || !BEGUN.compareAndSet(false, true)) {
            return;
        }
        arrange(List.of());
        Path archive = Path.of(file).toAbsolutePath().normalize();
        if (isMade(archive)) {
            offer(archive);
            return;
        }
        // tests do not wait for it: the JVMs that they start before it is there read all themselves
        Thread maker = new Thread(() -> makeOnce(archive), "shared-classes");
        maker.setDaemon(true);
        maker.start();
    }

    private static void makeOnce(Path archive) {
        try (FileChannel lock =
                FileChannel.open(
                        Path.of(archive + ".lock"),
                        StandardOpenOption.CREATE,
                        StandardOpenOption.WRITE)) {
            // Linux looks for deadlocks between processes, not threads: if this thread waited while
            // a test holds the lock of JavaCPP's cache, the lock of another process would fail.
            FileLock held = lock.tryLock();
            while (held == null) {
                Thread.sleep(200);
                held = lock.tryLock();
            }
            if (!isMade(archive)) {
                make(archive);
            }
            held.release();
            offer(archive);
        } catch (IOException e) {
            // then there is none
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static void offer(Path archive) {
        try {
            arrange(entries(Files.readString(pathOf(archive))));
        } catch (IOException e) {
            return; // another build has taken it away
        }
        System.setProperty(OPTION, "@" + new ForkOptions(archive).getFile());
    }

    /** An archive holds for class paths that begin as its own does; folders take longest. */
    private static void arrange(List<String> first) {
        Set<String> path = new LinkedHashSet<>(first);
        entries(System.getProperty(CLASS_PATH)).stream()
                .sorted(Comparator.comparing(entry -> !isJar(entry))) // stable
                .forEach(path::add);
        System.setProperty(CLASS_PATH, String.join(File.pathSeparator, path));
    }

    /** An archive of jars that are not in this class path would stay unused. */
    private static boolean isMade(Path archive) {
        Path path = pathOf(archive);
        try {
            return Files.exists(archive)
                    && Files.exists(new ForkOptions(archive).getFile())
                    && Files.exists(path)
                    && entries(System.getProperty(CLASS_PATH))
                            .containsAll(entries(Files.readString(path)));
        } catch (IOException e) {
            return false; // it is being written
        }
    }

    private static Path pathOf(Path archive) {
        return Path.of(archive + ".path");
    }

    private static void make(Path archive) throws IOException, InterruptedException {
        // of names of their own: what a JVM that ends leaves behind may still write to others
        Path folder = Files.createTempDirectory(archive.toAbsolutePath().getParent(), "jars");
        Path made = folder.resolve("jars.jsa");
        ForkOptions options = new ForkOptions(archive);
        try {
            options.write();
            Path list = folder.resolve("all.classes");
            Set<String> classes = classes(folder);
            Files.write(list, classes);
            String jars = jarsOf(classes);
            java(
                    List.of(
                            "-Xshare:dump",
                            options.getUnsignedJars(),
                            "-XX:SharedClassListFile=" + list,
                            "-XX:SharedArchiveFile=" + made,
                            "-cp",
                            jars));
            Files.move(made, archive, StandardCopyOption.ATOMIC_MOVE);
            Files.writeString(pathOf(archive), jars);
        } finally {
            for (String name : folder.toFile().list()) {
                Files.delete(folder.resolve(name));
            }
            Files.delete(folder);
        }
    }

    /** What the programs load, and what the JDK's own archive has, whose place this one takes. */
    private static Set<String> classes(Path folder) throws IOException, InterruptedException {
        Set<String> lines = new LinkedHashSet<>();
        Path usual = Path.of(System.getProperty("java.home"), "lib", "classlist");
        if (Files.exists(usual)) {
            lines.addAll(Files.readAllLines(usual));
        }
        for (int i = 0; i < PROGRAMS.size(); i++) {
            Path list = folder.resolve(i + ".classes");
            List<String> load = new ArrayList<>(List.of("-XX:DumpLoadedClassList=" + list));
            load.addAll(List.of("-Dai.djl.offline=true", "-cp", System.getProperty(CLASS_PATH)));
            load.addAll(List.of(PROGRAMS.get(i).split(" ")));
            java(load);
            lines.addAll(Files.readAllLines(list));
        }
        lines.removeIf(line -> line.startsWith("io/djltp/")); // of jars that each build makes anew
        return lines;
    }

    private static void java(List<String> arguments) throws IOException, InterruptedException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"));
        command.addAll(arguments);
        Process process =
                new ProcessBuilder(command)
                        .redirectErrorStream(true)
                        .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                        .start();
        try {
            process.waitFor(MINUTES, TimeUnit.MINUTES);
        } finally {
            process.destroyForcibly();
        }
    }

    /** Returns the jars of this class path that have any of some classes; folders cannot be. */
    private static String jarsOf(Set<String> classes) throws IOException {
        Set<String> files =
                classes.stream().map(line -> line.split(" ")[0] + ".class").collect(toSet());
        List<String> jars = new ArrayList<>();
        for (String entry : entries(System.getProperty(CLASS_PATH))) {
            if (isJar(entry)) {
                try (ZipFile jar = new ZipFile(entry)) {
                    if (jar.stream().anyMatch(each -> files.contains(each.getName()))) {
                        jars.add(entry);
                    }
                }
            }
        }
        return String.join(File.pathSeparator, jars);
    }

    private static boolean isJar(String entry) {
        return entry.endsWith(".jar");
    }

    private static List<String> entries(String path) {
        return List.of(path.split(File.pathSeparator));
    }
}
