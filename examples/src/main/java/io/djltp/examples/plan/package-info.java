/** Contains {@code tp plan}: what a model costs on a mesh, in numbers and as a picture. */
package io.djltp.examples.plan;
