/** Contains {@code tp plan}: what a model costs on a mesh, in numbers and as a picture. */
@NullMarked
package io.djltp.examples.plan;

import org.jspecify.annotations.NullMarked;
