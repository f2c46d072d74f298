package io.djltp.examples.plan;

import j2html.tags.ContainerTag;

import java.util.Locale;

/** An element of SVG, which HTML knows and its library does not. */
final class Svg extends ContainerTag<Svg> {

    /**
     * Creates an element.
     *
     * @param name its name
     */
    Svg(String name) {
        super(name);
    }

    /** Returns a rectangle. */
    static Svg rectangle(double x, double y, double width, double height) {
        return new Svg("rect")
                .attr("x", number(x))
                .attr("y", number(y))
                .attr("width", number(width))
                .attr("height", number(height));
    }

    /** Returns a text whose middle is at a point. */
    static Svg label(double x, double y, String text) {
        return new Svg("text").attr("x", number(x)).attr("y", number(y)).withText(text);
    }

    /** Returns this element with what a reader or a pointer is told of it. */
    Svg titled(String title) {
        return with(new Svg("title").withText(title));
    }

    static String number(double value) {
        return String.format(Locale.ROOT, "%.1f", value);
    }
}
