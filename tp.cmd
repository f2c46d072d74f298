@echo off
rem Builds what is missing, then runs the tp command. Not run on a Windows machine yet.
rem Sources that have changed are not noticed: delete examples\target to build again.
setlocal
set "HERE=%~dp0"
set "JAVA=java"
if defined JAVA_HOME set "JAVA=%JAVA_HOME%\bin\java"
"%JAVA%" -version >nul 2>&1
if errorlevel 1 (
    echo tp: no Java found: install a JDK 17 or newer, or set JAVA_HOME 1>&2
    exit /b 2
)

set "STAMP=%HERE%examples\target\dependencies.txt"
if exist "%STAMP%" goto run
echo tp: building ... 1>&2
pushd "%HERE%"
call mvnw.cmd -q -B -ntp package -Dmaven.test.skip=true -Dfmt.skip -Dnullaway.skip 1>&2
if errorlevel 1 (
    popd
    exit /b 1
)
popd

:run
rem In the environment: as an argument the class path can be too long for a command line.
for /f "usebackq delims=" %%C in ("%STAMP%") do set "CLASSPATH=%HERE%examples\target\classes;%%C"
"%JAVA%" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:CompileThresholdScaling=0.1 -Xms64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30 -Dai.djl.offline=true ^
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn ^
    -Dorg.slf4j.simpleLogger.log.ai.djl.util.cuda.CudaUtils=error ^
    --enable-native-access=ALL-UNNAMED ^
    %TP_JAVA_OPTS% io.djltp.examples.Tp %*
exit /b %errorlevel%
