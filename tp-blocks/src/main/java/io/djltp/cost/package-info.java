/** Contains what a model costs on a mesh: memory and communication, before it is allocated. */
@NullMarked
package io.djltp.cost;

import org.jspecify.annotations.NullMarked;
