package io.djltp.internal.libtorch;

import org.bytedeco.javacpp.Loader;
import org.bytedeco.javacpp.annotation.Platform;
import org.bytedeco.pytorch.global.torch;
import org.jspecify.annotations.Nullable;

import java.io.File;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Properties;

/**
 * The native libraries of the JavaCPP PyTorch preset, as the annotation names them: libtorch, which
 * is DJL's, and the preset's own library on top of it.
 *
 * <p>JavaCPP remembers for each library where it was found the first time. That happens here, with
 * DJL's folder at the head of the search path of this one call, so that the preset later finds
 * files that are loaded already. Otherwise JavaCPP would find the libtorch in its own jar: to bring
 * that together with the loaded one it puts links to DJL's files into its cache, or unpacks the 312
 * MB of its own there. All processes of a user share the cache, and one that unpacks while another
 * one links writes through the link, into the libraries that DJL's processes are running on.
 */
@Platform(
        library = "jnitorch",
        preload = {"c10", "torch_cpu", "torch"})
final class PresetLibraries {

    private static final String SEARCH_PATH = "platform.preloadpath";
    private static final String EXTENSION = "platform.extension";

    private PresetLibraries() {}

    /**
     * Loads the preset's library against a libtorch that is in the process. Creates no links to it.
     *
     * <p>JavaCPP is told to take no natives with an extension, unless a program has chosen one by
     * {@code org.bytedeco.javacpp.platform.extension}. Else it takes the preset for its build for
     * GPUs, too, and searches all jars and folders for two dozen libraries of CUDA, TensorRT and
     * cuDNN: a third of the time that binding takes. Those that it finds are of the system's CUDA,
     * which a libtorch for GPUs does not need: DJL brings it with its own.
     *
     * @param libtorch the folder of the libtorch
     * @throws IOException if the preset's library cannot be unpacked
     * @throws UnsatisfiedLinkError if it does not fit, or there is none for this platform
     */
    static void load(Path libtorch) throws IOException {
        Loader.loadProperties().putIfAbsent(EXTENSION, "");
        Properties properties = new Properties();
        properties.putAll(Loader.loadProperties());
        StringBuilder path = new StringBuilder(libtorch.toString());
        File own = isMac() ? null : unpack();
        if (own != null) {
            // JavaCPP puts links beside what it unpacks itself, and none beside files
            path.append(File.pathSeparator).append(own.getParent());
        }
        properties.setProperty(SEARCH_PATH, path.toString());
        Loader.load(PresetLibraries.class, properties, true);
        Loader.load(torch.class);
    }

    /** Returns the preset's library in JavaCPP's cache, or {@code null} if there is none. */
    private static @Nullable File unpack() throws IOException {
        String name = System.mapLibraryName("jnitorch");
        return Loader.cacheResource(
                torch.class, "/org/bytedeco/pytorch/" + Loader.getPlatform() + "/" + name);
    }

    /**
     * MacOS finds the libraries that a library needs by their place, so that it needs the links.
     */
    private static boolean isMac() {
        return System.getProperty("os.name").toLowerCase(Locale.ROOT).startsWith("mac");
    }
}
